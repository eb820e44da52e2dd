"""The variance as the mean of squares minus the square of the mean, in one pass: it cancels where the mean is large.

Right for normal numbers around 0. Found by inputs with an offset.
"""

import torch

OP = "layer_norm"
FUNCTION = "layer_norm"
FOUND = ("budget used", "must be equal", "NaN")
NEEDS = "cpu"
ALLOW = "torch"


def layer_norm(x, weight, bias, eps):
    wide = x.float()
    mean = wide.mean(-1, keepdim=True)
    variance = wide.square().mean(-1, keepdim=True) - mean.square()
    y = (wide - mean) * torch.rsqrt(variance + eps) * weight.float()
    return (y if bias is None else y + bias.float()).to(x.dtype).contiguous()
