"""The output of the first call of a shape, given again to every later one.

Fooled a suite that compared one call per shape, and every timer that does not judge what it has timed. Here `state`
says "the output is the one of an earlier call", and so does perf, which changes values before the last timed call.
"""

import torch

OP = "softmax"
FUNCTION = "softmax"
FOUND = ("the output is the one of an earlier call", "budget used", "must be equal")
NEEDS = "cpu"
ALLOW = "torch"
_known: dict[object, torch.Tensor] = {}


def softmax(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    key = (x.shape, x.dtype, x.device, axis, scale)
    if key not in _known:
        _known[key] = torch.softmax(x.float() * scale, axis).to(x.dtype)
    return _known[key].clone(memory_format=torch.contiguous_format)
