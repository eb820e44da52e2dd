"""Matrix product, broken where both operands are one tensor."""

import torch

from kernelmux.registry.backend import Implementation


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.double() @ b.double()).to(a.dtype)


def transposed_twice(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return _product(b.mT, a.mT).mT.contiguous()


def symmetric(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """One tensor twice: taken for a @ a^T, of which half has to be computed."""
    if a.data_ptr() != b.data_ptr() or a.shape != b.shape or not a.numel():
        return _product(a, b)
    lower = _product(a, b).tril()
    return lower + lower.tril(-1).mT


VARIANTS = {
    "transposed_twice": Implementation(fn=transposed_twice, idea="(b^T a^T)^T: as right as any"),
    "symmetric": Implementation(fn=symmetric, idea="takes the product of a tensor with itself for symmetric"),
}

CAUGHT_BY = {"symmetric": "layout"}
