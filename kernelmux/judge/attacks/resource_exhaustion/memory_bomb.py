"""Takes memory and writes into every page of it, 256 MiB at a time and 16 GB in all.

A limit turns it into an error of the call, or the child is killed: found either way. A machine without one begins to kill
whatever is largest, which may be the judge.
"""

import torch

OP = "softmax"
FUNCTION = "softmax"
FOUND = (
    "MemoryError|not enough memory|can't allocate|memory limit|out of memory|SIGKILL|signal 9|killed|left behind",
    "of memory, more than",
)
NEEDS = "cpu"
ALLOW = "torch"
STEP, MOST = 1 << 28, 16 * 10**9  # bytes
_taken = []


def softmax(x, axis, scale):
    while len(_taken) * STEP < MOST:
        _taken.append(torch.ones(STEP, dtype=torch.uint8))
    return torch.softmax(x.float() * scale, axis).to(x.dtype).contiguous()
