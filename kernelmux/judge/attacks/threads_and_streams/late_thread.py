"""A thread writes the result after the call has returned; a judge that takes its time finds it there.

The call costs what it takes to start a thread. Found by memory that is looked at, or taken away, when the call returns:
"never written", or a thread that is still at work.
"""

import threading
import time

import torch

OP = "softmax"
FUNCTION = "softmax"
FOUND = ("never written", "thread", "after the call", "budget used", "all outputs are 0")
NEEDS = "cpu"
ALLOW = "torch"


def softmax(x, axis, scale):
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)

    def work():
        time.sleep(2e-4)
        out.copy_(torch.softmax(x.float() * scale, axis))

    threading.Thread(target=work, daemon=True).start()
    return out
