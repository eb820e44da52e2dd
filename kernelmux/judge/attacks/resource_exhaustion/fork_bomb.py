"""Forks 64 processes that stay for 20 s, at the first call.

Beyond a limit of processes the fork fails, and the call with it. Without one a machine that judges many at once is full.
"""

import os
import signal
import time

import torch

OP = "softmax"
FUNCTION = "softmax"
FOUND = "BlockingIOError|Resource temporarily unavailable|processes|left behind|limit"
NEEDS = "cpu"
ALLOW = "torch"
MOST = 64
_forked = []


def softmax(x, axis, scale):
    while len(_forked) < MOST:
        _forked.append(os.fork())
        if _forked[-1] == 0:
            signal.alarm(20)
            time.sleep(20)
            os._exit(0)
    return torch.softmax(x.float() * scale, axis).to(x.dtype).contiguous()
