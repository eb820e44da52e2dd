"""Logarithm of softmax by torch.log_softmax."""

import torch

from kernelmux.registry.backend import Implementation
from kernelmux.registry.numerics import Rounding


def plain(x: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.log_softmax(x, axis).contiguous()


def exact(x: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.log_softmax(x.float(), axis).to(x.dtype).contiguous()  # rounded once, along every axis


def _parts(x: torch.Tensor, axis: int) -> torch.Tensor:
    if not x.numel():
        return x
    distance = x - x.amax(axis, keepdim=True)
    return distance.abs() + distance.exp().sum(axis, keepdim=True).log()


PARTS = Rounding("x - max and the logarithm, on a CPU", _parts, lambda x, axis: torch.full_like(x, 2.0))

VARIANTS = {
    "plain": Implementation(fn=plain, idea="torch.log_softmax", rounds=(PARTS,)),
    "exact": Implementation(fn=exact, idea="torch.log_softmax in fp32"),
}
