"""Softmax by torch.softmax."""

import torch

from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import OneOf
from kernelmux.registry.numerics import Rounding


def plain(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return torch.softmax(x, axis).contiguous()


def exact(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    if scale == 1.0 and (x.is_cuda or axis == x.dim() - 1):
        return torch.softmax(x, axis).contiguous()
    # A scale applied in 16 bits would be a second rounding, and so is what torch's CPU kernel does in bf16 along
    # any axis but the last (1.6 times the error bound at 7x31x5, axis 1, torch 2.13).
    z = x.float()
    if abs(scale) > 1.0 and x.numel():  # scale * x might overflow where the distances to the maximum do not
        z = z - (z.amax(axis, keepdim=True) if scale > 0 else z.amin(axis, keepdim=True)).detach()
    return torch.softmax(z * scale, axis).to(x.dtype).contiguous()


EXPONENTIALS = Rounding(
    "exp(x - max), on a CPU and not along the last axis",
    lambda x, axis, scale: torch.softmax(x, axis),
    lambda x, axis, scale: torch.zeros_like(x),
)

VARIANTS = {
    "plain": Implementation(fn=plain, idea="torch.softmax", requires=(OneOf("scale", 1.0),), rounds=(EXPONENTIALS,)),
    "exact": Implementation(fn=exact, idea="torch.softmax, in fp32 where it would round twice"),
}
