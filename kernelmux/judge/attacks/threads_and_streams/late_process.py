"""A forked process writes the result into shared memory after the call has returned.

No thread is left in the process that is looked at. The helper ends after 20 s at most. Found as late work, or as a
process too many.
"""

import os
import signal

import torch

OP = "layer_norm"
FUNCTION = "layer_norm"
FOUND = ("never written", "process", "after the call", "budget used", "all outputs are 0", "BlockingIOError")
NEEDS = "cpu"
ALLOW = "torch"


def layer_norm(x, weight, bias, eps):
    out = torch.empty(x.shape, dtype=x.dtype).share_memory_()
    if os.fork() == 0:
        signal.alarm(20)
        wide = x.float()
        centred = wide - wide.mean(-1, keepdim=True)
        y = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps) * weight.float()
        out.copy_(y if bias is None else y + bias.float())
        os._exit(0)
    return out
