"""One row in memory, expanded to as many as were asked for: a view whose stride is 0 says that all are written.

The sums over an axis of equal rows need no more; of others they are wrong. Outputs have to be contiguous memory of their
own: "expected a contiguous tensor".
"""

import torch

OP = "layer_norm"
FUNCTION = "layer_norm"
FOUND = ("expected a contiguous|strides", "budget used")
NEEDS = "cpu"
ALLOW = "torch"


def layer_norm(x, weight, bias, eps):
    row = x.reshape(-1, x.shape[-1])[:1].float()
    centred = row - row.mean(-1, keepdim=True)
    y = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps) * weight.float()
    return (y if bias is None else y + bias.float()).to(x.dtype).expand(x.shape)
