"""Softmax in one walk: blocks of the axis with a running maximum and sum, and a second walk that writes."""

import torch

OP = "softmax"
FUNCTION = "softmax"
NEEDS = "cpu"
ALLOW = "torch"
BLOCK = 17  # or as many as make 256 blocks


def softmax(x, axis, scale):
    z = x.float() * scale
    shape = [1 if i == axis else n for i, n in enumerate(z.shape)]
    top = torch.full(shape, -torch.inf, dtype=torch.float32, device=x.device)
    total = torch.zeros(shape, dtype=torch.float32, device=x.device)
    for part in z.split(max(BLOCK, z.shape[axis] // 256), axis):
        if part.numel():
            higher = torch.maximum(top, part.amax(axis, keepdim=True))
            shift = torch.where(higher == -torch.inf, 0.0, higher)
            total = total * torch.exp(top - shift) + torch.exp(part - shift).sum(axis, keepdim=True)
            top = higher
    return (torch.exp(z - top) / total).to(x.dtype).contiguous()
