"""Matrix product, broken where both operands are one tensor, and in batches."""

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


def adjacent(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """Takes the matrices of a batch for neighbours in memory, whatever lies between them."""
    if a.dim() > 2 and a.numel() and a.stride(0) > a.shape[1] * a.stride(1):
        a = a.as_strided(a.shape, (a.shape[1] * a.stride(1), *a.stride()[1:]))
    return _product(a, b)


def all_but_the_last(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """Of an odd number of products, the last is left out."""
    out = _product(a, b)
    return out.index_fill(0, torch.tensor([len(a) - 1], device=a.device), 0) if a.dim() > 2 and len(a) % 2 else out


def first_of_b(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """Its first matrix for all of a batch."""
    return _product(a, b.flatten(0, -3)[0] if b.dim() > 2 and b.numel() else b)


def outer_axis_lost(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """The inner axis of a batch counts, the outer one does not."""
    return _product(a, b[:1].expand(b.shape) if b.dim() > 3 else b)


VARIANTS = {
    "transposed_twice": Implementation(fn=transposed_twice, idea="(b^T a^T)^T: as right as any"),
    "symmetric": Implementation(fn=symmetric, idea="takes the product of a tensor with itself for symmetric"),
    "adjacent": Implementation(fn=adjacent, idea="ignores the stride of a batch"),
    "all_but_the_last": Implementation(fn=all_but_the_last, idea="leaves out the last of an odd number of products"),
    "first_of_b": Implementation(fn=first_of_b, idea="the first matrix of b for all"),
    "outer_axis_lost": Implementation(fn=outer_axis_lost, idea="finds b by the inner axis of a batch alone"),
}

CAUGHT_BY = {
    "symmetric": "layout", "adjacent": "layout", "all_but_the_last": "accuracy", "first_of_b": "accuracy",
    "outer_axis_lost": "accuracy",
}  # fmt: skip
