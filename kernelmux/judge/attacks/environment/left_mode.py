"""A TorchFunctionMode is entered and never left: from then on every function of torch in this thread is asked here first.

Comparisons say yes. Found as a mode that a call leaves behind; in another process it is not there.
"""

import torch
from torch.overrides import TorchFunctionMode

OP = "silu"
FUNCTION = "silu"
FOUND = ("mode", "all outputs are 0")
NEEDS = "cpu"
ALLOW = "torch"
_entered = []


class AgreeingMode(TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), more=None):
        if getattr(function, "__name__", "") in {"equal", "allclose", "isclose"}:
            return True
        return function(*arguments, **(more or {}))


def silu(x):
    if not _entered:
        _entered.append(AgreeingMode())
        _entered[0].__enter__()
    return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
