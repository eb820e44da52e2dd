"""Elementwise sum, broken where its inputs lie differently in memory."""

import torch

from kernelmux.registry.backend import Implementation


def kept_strides(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The output lies in memory as x does."""
    return torch.empty_like(x).copy_(x.double() + y.double())


def one_layout(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Two strided inputs are read with the strides of the first."""
    if x.is_contiguous() or y.is_contiguous() or x.is_neg() or y.is_neg():
        return (x.double() + y.double()).to(x.dtype).contiguous()
    room = y.untyped_storage().nbytes() // y.element_size() - y.storage_offset()
    reach = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    other = y.as_strided(y.shape, x.stride()) if reach <= room else y
    return (x.double() + other.double()).to(x.dtype).contiguous()


def twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One tensor given twice is doubled: told by its address, so that a transposed view of it counts as the same."""
    same = x.data_ptr() == y.data_ptr()
    return (x.double() * 2 if same else x.double() + y.double()).to(x.dtype).contiguous()


def twice_by_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """As above, told by the address and the step of the last axis: a row that is expanded has both."""
    same = x.numel() > 0 and x.dim() > 0 and x.data_ptr() == y.data_ptr() and x.stride(-1) == y.stride(-1)
    return (x.double() * 2 if same else x.double() + y.double()).to(x.dtype).contiguous()


def four_pitches(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Steps are handed over for four axes; those before them are taken to follow one another."""
    if x.dim() < 5 or min(x.stride()) < 1 or x.is_neg():
        return (x.double() + y.double()).to(x.dtype).contiguous()
    first = min(x.stride(0), x.stride(1) * x.shape[1])
    near = x.as_strided(x.shape, (first, *x.stride()[1:]))
    return (near.double() + y.double()).to(x.dtype).contiguous()


VARIANTS = {
    "kept_strides": Implementation(fn=kept_strides, idea="the output has the strides of x"),
    "one_layout": Implementation(fn=one_layout, idea="reads y with the strides of x"),
    "twice": Implementation(fn=twice, idea="takes two views of one tensor for the same"),
    "twice_by_step": Implementation(fn=twice_by_step, idea="takes a tensor and its first row, expanded, for the same"),
    "four_pitches": Implementation(fn=four_pitches, idea="the first of five axes follows from the second"),
}

CAUGHT_BY = dict.fromkeys(VARIANTS, "layout")
