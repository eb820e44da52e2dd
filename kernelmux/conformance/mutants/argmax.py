"""argmax, broken."""

import torch

from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.registry import catalog

mutant = Mutants("argmax")


# basics: Index of the maximum, broken where elements are equal, and where some are NaN.

CHUNK = 512


def _sound(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    y: torch.Tensor = catalog.spec("argmax").reference(x, axis, keepdim)
    return y.contiguous()


@mutant("the last of equals", family="basics", caught_by="accuracy")
def last_of_equals(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """Compares with >= instead of >."""
    turned = x.flip(tuple(range(x.dim())) if axis is None else axis)
    return (x.numel() if axis is None else x.shape[axis]) - 1 - _sound(turned, axis, keepdim)


@mutant("0 beats -0", family="basics", caught_by="accuracy")
def ordered_zeros(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """Compares bits as integers, to which 0 is larger than -0."""
    negative = (x == 0) & torch.signbit(x)
    return _sound(torch.where(negative, -torch.finfo(x.dtype).tiny, x), axis, keepdim)


@mutant("NaN loses against numbers", family="basics", caught_by="special_values")
def ignored_nan(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    return _sound(torch.where(x.isnan(), -torch.inf, x), axis, keepdim)


@mutant("the last NaN", family="basics", caught_by="special_values")
def last_nan(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """A NaN takes the place of whatever came before, another NaN too."""
    last = last_of_equals(x, axis, keepdim)
    return torch.where(catalog.spec("reduce_max").reference(x, axis, keepdim).isnan(), last, _sound(x, axis, keepdim))


@mutant("indices of chunks of 512 elements", family="basics", caught_by="accuracy")
def within_its_chunk(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """The index of a long axis is counted from the beginning of its chunk."""
    return _sound(x, axis, keepdim) % CHUNK


@mutant("indices of 32 bits", family="basics", caught_by="accuracy")
def narrow(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    return _sound(x, axis, keepdim).to(torch.int32)
