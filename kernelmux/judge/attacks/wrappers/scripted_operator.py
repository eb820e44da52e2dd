"""torch's operator inside of a script that torch compiled itself: no frame of Python and no function of torch is called.

`torch.jit.script` runs it in an interpreter of C++, which profilers of Python do not hear. Found in torch's dispatcher.
"""

import torch

OP = "softmax"
FUNCTION = "softmax"
FOUND = "torch's own|torch.*softmax|aten"
NEEDS = "cpu"


@torch.jit.script
def _scripted(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return torch.softmax(x.to(torch.float32) * scale, axis).to(x.dtype).contiguous()


def softmax(x, axis, scale):
    return _scripted(x, axis, scale)
