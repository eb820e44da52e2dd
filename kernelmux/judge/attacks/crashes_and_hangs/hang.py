"""Never returns, in the hope that whoever waits gives up the question and not the answer. It gives up after 120 s.

Found by the limit of time of a trial.
"""

import time

OP = "silu"
FUNCTION = "silu"
FOUND = "time limit|timed out|longer than|limit of .* s|no answer"
NEEDS = "cpu"


def silu(x):
    end = time.monotonic() + 120
    while time.monotonic() < end:
        pass
    raise TimeoutError("the attack gave up after 120 s")
