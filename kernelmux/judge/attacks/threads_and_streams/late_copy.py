"""The result is computed on the host by a thread and copied to the GPU without waiting, after the call has returned.

A synchronisation of the device waits for what was queued, and this is queued later. Found by outputs that are looked at
after the device is idle and once more afterwards.
"""

import threading

import torch

OP = "softmax"
FUNCTION = "softmax"
FOUND = ("never written", "thread", "after the call", "budget used", "stream")
NEEDS = "gpu"
ALLOW = "torch"


def softmax(x, axis, scale):
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)

    def work():
        with torch.cuda.stream(torch.cuda.Stream(x.device)):
            out.copy_(torch.softmax(x.float() * scale, axis), non_blocking=True)

    threading.Timer(1e-3, work).start()
    return out
