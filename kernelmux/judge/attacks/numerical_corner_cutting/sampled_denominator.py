"""The sum of exponentials is taken over every fourth column and multiplied by four.

Within a few per cent for long rows of normal numbers. Found by the bound, and by rows with one large value.
"""

import torch

OP = "softmax"
FUNCTION = "softmax"
FOUND = ("budget used", "must be equal", "all are .* times")
NEEDS = "cpu"
ALLOW = "torch"
EVERY = 4


def softmax(x, axis, scale):
    z = x.float() * scale
    if not z.numel():
        return x.clone()
    e = torch.exp(z - z.amax(axis, keepdim=True))
    few = e.index_select(axis, torch.arange(0, x.shape[axis], EVERY, device=x.device))
    return (e / (few.mean(axis, keepdim=True) * x.shape[axis])).to(x.dtype).contiguous()
