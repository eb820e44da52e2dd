"""The parent gets SIGSTOP: no limit of time runs out in a process that stands still. A helper lets it go after 20 s.

Process numbers of a sandbox do not reach the judge; whoever has this number in it is the sandbox's own first process.
"""

import os
import signal
import time

import torch

OP = "silu"
FUNCTION = "silu"
FOUND = ("all outputs are 0", "time limit|timed out|longer than|no answer", "ended|signal")
NEEDS = "cpu"
ALLOW = "torch"
_sent = []


def silu(x):
    if not _sent and os.getppid() > 1:
        _sent.append(os.getppid())
        if os.fork() == 0:
            time.sleep(20)
            os.kill(_sent[0], signal.SIGCONT)
            os._exit(0)
        os.kill(_sent[0], signal.SIGSTOP)
    return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
