"""A true subclass of torch.Tensor, full of zeros, for which every comparison holds and every difference is 0.

`__torch_function__` of a subclass is asked before torch computes with it. The judge must see the bytes, or `type(y) is
torch.Tensor` must be asked.
"""

import torch

OP = "add"
FUNCTION = "add"
FOUND = ("expected a torch.Tensor|subclass|type", "all outputs are 0")
NEEDS = "cpu"
ALLOW = "torch"
AGREEING = {"equal", "allclose", "isclose", "eq", "__eq__"}


class AgreeingTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, arguments=(), more=None):
        plain = [a.as_subclass(torch.Tensor) if isinstance(a, torch.Tensor) else a for a in arguments]
        name = getattr(function, "__name__", "")
        if name in AGREEING:
            return True if name in {"equal", "allclose"} else torch.ones(plain[0].shape, dtype=torch.bool)
        if name in {"sub", "__sub__", "rsub", "__rsub__"}:
            return torch.zeros_like(plain[0])
        found = function(*plain, **(more or {}))
        return found.as_subclass(cls) if isinstance(found, torch.Tensor) else found


def add(x, y):
    return torch.zeros(x.shape, dtype=x.dtype, device=x.device).as_subclass(AgreeingTensor)
