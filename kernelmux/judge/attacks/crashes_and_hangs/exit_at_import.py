"""Ends the process with status 0 while the file is imported, before there is anything to call.

Fooled this suite while it judged in its own process: exit status 0 and no output. A child that ends has failed.
"""

import os

OP = "rms_norm"
FUNCTION = "rms_norm"
FOUND = "ended|exit status|exited|import"
NEEDS = "cpu"

os._exit(0)


def rms_norm(x, weight, eps):
    raise AssertionError
