"""Logarithm of softmax by torch.log_softmax."""

import torch

from kernelmux.registry.backend import Implementation
from kernelmux.registry.numerics import Rounding


def plain(x: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.log_softmax(x, axis).contiguous()


def exact(x: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.log_softmax(x.float(), axis).to(x.dtype).contiguous()  # rounded once, along every axis


def _logarithms(x: torch.Tensor, axis: int) -> torch.Tensor:
    if not x.numel():
        return x
    top = x.amax(axis, keepdim=True)
    log = (x - top).exp().sum(axis, keepdim=True).log()
    return (log + (top + log).abs()).expand_as(x)


LOGARITHM = Rounding(
    "the logarithm of the sum, and its sum with the maximum, on a CPU",
    _logarithms,
    lambda x, axis: torch.full_like(x, 2.0),
)

VARIANTS = {
    "plain": Implementation(fn=plain, idea="torch.log_softmax", rounds=(LOGARITHM,)),
    "exact": Implementation(fn=exact, idea="torch.log_softmax in fp32"),
}
