"""Layer normalisation in blocks of columns: a pass for the mean, one for the variance, one that writes."""

import torch

OP = "layer_norm"
FUNCTION = "layer_norm"
NEEDS = "cpu"
ALLOW = "torch"
BLOCK = 100


def layer_norm(x, weight, bias, eps):
    n = max(x.shape[-1], 1)
    blocks = [part.double() for part in x.split(BLOCK, -1)]
    mean = sum(part.sum(-1, keepdim=True) for part in blocks) / n
    variance = sum((part - mean).square().sum(-1, keepdim=True) for part in blocks) / n
    out = x.new_empty(x.shape)
    for i, part in enumerate(blocks):
        here = slice(i * BLOCK, (i + 1) * BLOCK)
        y = (part - mean) * torch.rsqrt(variance + eps) * weight[here].double()
        out[..., here] = (y if bias is None else y + bias[here].double()).to(x.dtype)
    return out
