"""Index of the maximum, broken where elements are equal, and where some are NaN."""

import torch

from kernelmux.registry import catalog
from kernelmux.registry.backend import Implementation

CHUNK = 512


def _sound(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    y: torch.Tensor = catalog.spec("argmax").reference(x, axis, keepdim)
    return y.contiguous()


def last_of_equals(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """Compares with >= instead of >."""
    turned = x.flip(tuple(range(x.dim())) if axis is None else axis)
    return (x.numel() if axis is None else x.shape[axis]) - 1 - _sound(turned, axis, keepdim)


def ordered_zeros(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """Compares bits as integers, to which 0 is larger than -0."""
    negative = (x == 0) & torch.signbit(x)
    return _sound(torch.where(negative, -torch.finfo(x.dtype).tiny, x), axis, keepdim)


def ignored_nan(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    return _sound(torch.where(x.isnan(), -torch.inf, x), axis, keepdim)


def last_nan(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """A NaN takes the place of whatever came before, another NaN too."""
    last = last_of_equals(x, axis, keepdim)
    return torch.where(catalog.spec("reduce_max").reference(x, axis, keepdim).isnan(), last, _sound(x, axis, keepdim))


def within_its_chunk(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """The index of a long axis is counted from the beginning of its chunk."""
    return _sound(x, axis, keepdim) % CHUNK


def narrow(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    return _sound(x, axis, keepdim).to(torch.int32)


VARIANTS = {
    "last_of_equals": Implementation(fn=last_of_equals, idea="the last of equals"),
    "ordered_zeros": Implementation(fn=ordered_zeros, idea="0 beats -0"),
    "ignored_nan": Implementation(fn=ignored_nan, idea="NaN loses against numbers"),
    "last_nan": Implementation(fn=last_nan, idea="the last NaN"),
    "within_its_chunk": Implementation(fn=within_its_chunk, idea="indices of chunks of 512 elements"),
    "narrow": Implementation(fn=narrow, idea="indices of 32 bits"),
}

CAUGHT_BY = {
    "last_of_equals": "accuracy", "ordered_zeros": "accuracy", "ignored_nan": "special_values",
    "last_nan": "special_values", "within_its_chunk": "accuracy", "narrow": "accuracy",
}  # fmt: skip
