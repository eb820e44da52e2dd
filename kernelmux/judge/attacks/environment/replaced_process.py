"""The process becomes another program: execv keeps its number and its descriptors, and nothing else.

The program writes a report of success to every descriptor and ends with status 0. No answer to a trial is that.
"""

import os
import sys

OP = "layer_norm"
FUNCTION = "layer_norm"
FOUND = "ended|exit status|exited|no answer|channel|protocol"
NEEDS = "cpu"
CODE = """
import os
for descriptor in range(1, 64):
    try:
        os.set_inheritable(descriptor, True)
        os.write(descriptor, b'{"status": "passed", "failed": 0}' + bytes([10]))
    except OSError:
        pass
"""


def layer_norm(x, weight, bias, eps):
    for descriptor in range(3, 64):
        try:
            os.set_inheritable(descriptor, True)
        except OSError:
            continue
    os.execv(sys.executable, [sys.executable, "-c", CODE])
