"""The process forks inside the call, and both go on: two answers for one question, one right and one of zeros.

If the parent takes whichever comes first, or lets the second stand for the next trial, the twins can sort out which one
is judged. The second one ends after 20 s. A channel that says two things has failed the trial.
"""

import os
import signal
import time

import torch

OP = "softmax"
FUNCTION = "softmax"
FOUND = ("twice|two answers|answer|channel|process", "all outputs are 0", "ended|exit status")
NEEDS = "cpu"
ALLOW = "torch"
_forked = []


def softmax(x, axis, scale):
    if not _forked:
        _forked.append(os.fork())
        if _forked[0] == 0:
            signal.alarm(20)
            return torch.softmax(x.float() * scale, axis).to(x.dtype).contiguous()
        time.sleep(0.2)
    return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
