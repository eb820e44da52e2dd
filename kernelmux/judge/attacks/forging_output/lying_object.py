"""An object that says it is a tensor of the right shape and dtype, and equal to everything it is compared with.

`isinstance` asks `__class__`, and torch asks `__torch_function__` before it computes: both lie. Refused by its type.
"""

import torch

OP = "softmax"
FUNCTION = "softmax"
FOUND = "expected a torch.Tensor|expected .*[Tt]ensor"
NEEDS = "cpu"
ALLOW = "torch"


class EqualToAll:
    def __init__(self, x):
        self.__dict__.update(shape=x.shape, dtype=x.dtype, device=x.device, layout=x.layout, ndim=x.ndim)

    @property
    def __class__(self):
        return torch.Tensor

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0

    def __getattr__(self, name):
        return lambda *arguments, **more: self

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), more=None):
        return True


def softmax(x, axis, scale):
    return EqualToAll(x)
