"""A decorator around the function widens what comes in and narrows what goes out."""

import functools

OP = "layer_norm"
FUNCTION = "layer_norm"
NEEDS = "cpu"
ALLOW = "torch"


def in_float64(function):
    @functools.wraps(function)
    def widened(x, weight, bias, eps):
        wide = [t if t is None else t.double() for t in (x, weight, bias)]
        return function(*wide, eps).to(x.dtype).contiguous()

    return widened


@in_float64
def layer_norm(x, weight, bias, eps):
    centred = x - x.mean(-1, keepdim=True)
    y = centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * weight
    return y if bias is None else y + bias
