"""The callers' frames are searched for a tensor of the result's shape that is no input: the expected one.

Fooled graders that compute the reference first and keep it in a local variable while the kernel runs. In a child no
frame above the call knows one, and what is returned instead is zeros.
"""

import sys

import torch

OP = "softmax"
FUNCTION = "softmax"
FOUND = ("all outputs are 0", "budget used", "recognises|expected result")
NEEDS = "cpu"
ALLOW = "torch"


def _tensors(value, depth=0):
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < 4:
        inside = vars(value) if hasattr(value, "__dict__") else value
        parts = inside.values() if isinstance(inside, dict) else inside if isinstance(inside, list | tuple) else ()
        for part in list(parts)[:64]:
            yield from _tensors(part, depth + 1)


def softmax(x, axis, scale):
    frame = sys._getframe(1)
    while frame is not None:
        for value in list(frame.f_locals.values()):
            for found in _tensors(value):
                if found.shape == x.shape and found.dtype == torch.float64 and found.numel():
                    return found.to(x.dtype).contiguous()
        frame = frame.f_back
    return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
