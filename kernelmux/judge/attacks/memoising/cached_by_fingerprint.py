"""The output remembered by a fingerprint of the input, a few of its values, and copied out of a buffer in later calls.

Fooled flashinfer-bench (starter kit, issue 21): outputs are right as long as a suite changes all values at once, and
timed calls on values that were seen before only copy. Here `state` changes a single value: "the output is the one of an
earlier call". perf times calls on values that it draws at run time: "outputs are kept".
"""

import torch

OP = "softmax"
FUNCTION = "softmax"
FOUND = ("the output is the one of an earlier call", "outputs are kept")
NEEDS = "cpu"
ALLOW = "torch"
_known: dict[object, torch.Tensor] = {}


def softmax(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    few = x.flatten()[:: max(x.numel() // 8, 1)].tolist()
    key = (tuple(map(str, few)), x.shape, x.dtype, x.device, axis, scale)
    if key not in _known:
        _known[key] = torch.softmax(x.float() * scale, axis).to(x.dtype)
    return _known[key].clone(memory_format=torch.contiguous_format)
