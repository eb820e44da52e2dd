"""A subclass of torch.Tensor that computes when somebody reads it: the call itself takes a microsecond.

The comparison asks it through `__torch_function__`, and gets right numbers, after the clock has stopped. The output must
be a plain tensor when the call returns: `type(y) is torch.Tensor`.
"""

import torch

OP = "softmax"
FUNCTION = "softmax"
FOUND = "expected a torch.Tensor|subclass|type|never written|all outputs are 0"
NEEDS = "cpu"
ALLOW = "torch"


class ComputedWhenRead(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, arguments=(), more=None):
        return function(*[cls.computed(a) for a in arguments], **(more or {}))

    @staticmethod
    def computed(value):
        if not isinstance(value, ComputedWhenRead):
            return value
        x, axis, scale = value.__dict__["asked"]
        return torch.softmax(x.float() * scale, axis).to(x.dtype).contiguous()


def softmax(x, axis, scale):
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device).as_subclass(ComputedWhenRead)
    y.__dict__["asked"] = (x, axis, scale)
    return y
