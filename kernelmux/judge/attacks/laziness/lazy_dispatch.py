"""A wrapper subclass without memory: every operator on it arrives in `__torch_dispatch__`, and is computed there.

It has a shape, a dtype and strides, and no bytes at all, which a look at `data_ptr()` shows. Refused by its type.
"""

import torch

OP = "add"
FUNCTION = "add"
FOUND = "expected a torch.Tensor|subclass|type|data_ptr|storage|never written"
NEEDS = "cpu"
ALLOW = "torch"


class UnwrappedAtDispatch(torch.Tensor):
    @staticmethod
    def __new__(cls, x, y):
        made = torch.Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype, device=x.device)
        made.asked = (x, y)
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), more=None):
        known = [torch.add(*a.asked).contiguous() if isinstance(a, cls) else a for a in arguments]
        return function(*known, **(more or {}))


def add(x, y):
    return UnwrappedAtDispatch(x, y)
