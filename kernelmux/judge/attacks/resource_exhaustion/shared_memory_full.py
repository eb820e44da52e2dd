"""Fills /dev/shm, 2 GB at most, where the judge and its other children hand over their tensors.

The next trial of somebody else gets no memory. The folder of a child is its own, or limited.
"""

import os
import uuid

import torch

OP = "softmax"
FUNCTION = "softmax"
FOUND = "No space left|File too large|Read-only|Permission denied|No such file|shared memory|limit|memory"
NEEDS = "cpu"
ALLOW = "torch"
STEP, MOST = 1 << 26, 2 * 10**9  # bytes
_done = []


def softmax(x, axis, scale):
    if not _done:
        path = os.path.join("/dev/shm", uuid.uuid4().hex)
        with open(path, "wb") as file:
            try:
                for _ in range(MOST // STEP):
                    file.write(b"\1" * STEP)
            finally:
                os.unlink(path)  # the memory stays as long as the file is open
        _done.append(True)
    return torch.softmax(x.float() * scale, axis).to(x.dtype).contiguous()
