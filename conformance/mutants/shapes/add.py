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


VARIANTS = {
    "kept_strides": Implementation(fn=kept_strides, idea="the output has the strides of x"),
    "one_layout": Implementation(fn=one_layout, idea="reads y with the strides of x"),
    "twice": Implementation(fn=twice, idea="takes two views of one tensor for the same"),
}

CAUGHT_BY = {"kept_strides": "layout", "one_layout": "layout", "twice": "layout"}
