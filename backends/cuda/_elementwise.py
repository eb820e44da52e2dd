"""Elementwise family: contiguous inputs as wide accesses, all others read in place by their strides."""

from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
import torch

from kernelmux.backends.cuda._runtime import Kernel, Source, cdiv, ctype

ACCESS_BYTES = 16  # the widest load and store there is up to sm_90
Strides = tuple[int, ...]


@dataclass(frozen=True)
class Elementwise:
    """An op whose source has the entries `<name>_contiguous` and `<name>_strided`."""

    source: Source
    name: str
    inputs: tuple[str, ...]
    block: int = 256
    unroll: int = 4

    def __call__(self, *inputs: torch.Tensor, widest: int = ACCESS_BYTES, **defines: object) -> torch.Tensor:
        """The op on `inputs` (equal shapes, any strides), contiguous; an access moves at most `widest` bytes."""
        y = torch.empty_like(inputs[0], memory_format=torch.contiguous_format)
        tensors = (*inputs, y)
        if all(x.is_contiguous() for x in inputs):
            width = common_width(tensors, widest)
            kernel = self._kernel("contiguous", "", y, WIDTH=width, **defines)
            kernel(cdiv(y.numel(), self.block * self.unroll * width), self.block, *tensors, y.numel())
        elif y.numel():
            self._strided(tensors, widest, defines)
        return y

    def _strided(self, tensors: tuple[torch.Tensor, ...], widest: int, defines: dict[str, object]) -> None:
        inputs, y = tensors[:-1], tensors[-1]
        size, strides = collapse(tuple(y.shape), tuple(x.stride() for x in inputs))
        width = _strided_width(size, strides, common_width(tensors, widest))
        units = y.numel() // width
        index = "int" if units < 2**31 else "i64"
        kernel = self._kernel("strided", "layout:struct", y, WIDTH=width, RANK=len(size), INDEX=index, **defines)
        grid = cdiv(units, self.block * self.unroll)
        kernel(grid, self.block, *tensors, units, _layout(size, strides, width))

    def _kernel(self, path: str, more: str, y: torch.Tensor, **defines: object) -> Kernel:
        return self.source.kernel(
            f"{self.name}_{path}", _signature(self.inputs, more),
            ELEMENT=ctype(y.dtype), BLOCK=self.block, UNROLL=self.unroll, **defines,
        )  # fmt: skip


@cache
def _signature(inputs: tuple[str, ...], more: str) -> str:
    return " ".join((*(f"{name}*" for name in inputs), "out*", "n:i64", more))


def common_width(tensors: tuple[torch.Tensor, ...], widest: int = ACCESS_BYTES) -> int:
    """Elements per access: the widest access that every base address is a multiple of."""
    addresses = widest
    for x in tensors:
        addresses |= x.data_ptr()
    return max(1, min(widest, addresses & -addresses) // tensors[0].element_size())


@lru_cache(maxsize=1024)
def collapse(shape: tuple[int, ...], strides: tuple[Strides, ...]) -> tuple[tuple[int, ...], tuple[Strides, ...]]:
    """Drops dimensions of size 1 and merges neighbours that every input walks as one; never returns rank 0."""
    sizes: list[int] = []
    kept: list[list[int]] = []  # one list of strides per dimension, over the inputs
    for size, *step in zip(shape, *strides, strict=True):
        if size == 1:
            continue
        if kept and all(outer == inner * size for outer, inner in zip(kept[-1], step, strict=True)):
            sizes[-1], kept[-1] = sizes[-1] * size, step
        else:
            sizes, kept = [*sizes, size], [*kept, step]
    if not sizes:
        return (1,), ((1,),) * len(strides)
    return tuple(sizes), tuple(zip(*kept, strict=True))


def _strided_width(size: tuple[int, ...], strides: tuple[Strides, ...], width: int) -> int:
    """Elements per access when the innermost dimension is dense in every input; 1 where it is not."""
    if any(step[-1] != 1 for step in strides):
        return 1
    steps = [size[-1], *(outer for step in strides for outer in step[:-1])]
    while any(step % width for step in steps):
        width //= 2
    return width


@lru_cache(maxsize=1024)
def _layout(size: tuple[int, ...], strides: tuple[Strides, ...], width: int) -> bytes:
    """The kernel's Layout struct, in units of `width` elements: the innermost size shrinks, outer strides shrink."""

    def units(values: tuple[int, ...], last: int) -> list[int]:
        return [*(value // width for value in values[:-1]), last]

    words = [*size[:-1], size[-1] // width]
    for step in strides:
        words += units(step, step[-1])
    return np.array(words, np.int64).tobytes()
