"""The output remembered by the address of the input, copied out of a buffer in each later call.

Fooled flashinfer-bench (starter kit, issue 21) and tensara (pull request 238): the timed calls repeat what the warm-up
has computed. Here `state` changes inputs in place, and perf does so before the last timed call.
"""

import torch

OP = "softmax"
FUNCTION = "softmax"
FOUND = ("the output is the one of an earlier call", "outputs are kept", "what both bounds allow")
NEEDS = "cpu"
ALLOW = "torch"
_known: dict[object, torch.Tensor] = {}


def softmax(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    key = (x.data_ptr(), x.shape, x.stride(), x.dtype, axis, scale)
    if key not in _known:
        _known[key] = torch.softmax(x.float() * scale, axis).to(x.dtype)
    return _known[key].clone(memory_format=torch.contiguous_format)
