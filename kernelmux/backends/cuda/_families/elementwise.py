"""Elementwise family of n inputs, m outputs and run-time numbers; contiguous inputs as wide accesses, others in place.

Rows of halves of a wider tensor keep wide accesses: the width is the largest that addresses, rows and the distances
between rows are multiples of, and an index is taken apart once for an access, not for an element.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch

from kernelmux.backends.cuda._launch.runtime import FEW_BLOCKS, BoundLaunch, Kernel, Source, cdiv, ctype
from kernelmux.registry.util.cards import remembered

ACCESS_BYTES = 16  # the widest load and store there is up to sm_90
Strides = tuple[int, ...]
Defines = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, eq=False)
class Elementwise:
    """An op of n inputs and m outputs, whose source has the entries `<name>_contiguous` and `<name>_strided`.

    scalars: names of the fp32 members of the source's functor, for an op with numbers that a call gives (`_OF` macro).
    follows: of few elements it starts while the kernel ahead still runs.
    H200, 2^26 bf16: add 97 us with any block up to 256 threads; gelu (erf) 67.6 us with 128 threads and two accesses
    each in flight, 71.4 with one, 70.5 with 256 threads.
    """

    source: Source
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ("out",)
    scalars: tuple[str, ...] = ()
    block: int = 128
    unroll: int = 2
    follows: bool = False

    def __call__(self, *inputs: torch.Tensor, **options: Any) -> torch.Tensor:
        """The first output of `all`."""
        return self.all(*inputs, **options)[0]

    def all(
        self, *inputs: torch.Tensor, scalars: tuple[float, ...] = (), widest: int = ACCESS_BYTES, **defines: object
    ) -> tuple[torch.Tensor, ...]:
        """The outputs of the op on `inputs` (equal shapes, any strides), contiguous.

        An access moves at most `widest` bytes. OverflowError for a scalar that fp32 does not hold.
        """
        x, width = inputs[0], common_width(inputs, widest)
        outputs = tuple([torch.empty_like(x, memory_format=torch.contiguous_format) for _ in self.outputs])
        if outputs[0].numel():
            more = tuple(defines.items())
            launch: Callable[..., None]
            if all(t.is_contiguous() for t in inputs):
                launch = _contiguous(self, x.numel(), x.dtype, width, more)
            else:
                launch = _strided(self, x.shape, tuple([x.stride() for x in inputs]), x.dtype, width, more)
            launch(*inputs, *outputs, *(self.packed(scalars) if self.scalars else ()))
        return outputs

    def packed(self, scalars: tuple[float, ...]) -> tuple[bytes]:
        """The functor that a kernel takes by value: its fp32 members."""
        return (struct.pack(f"{len(self.scalars)}f", *scalars),)

    def early(self, blocks: int) -> dict[str, int]:
        """What makes a kernel of so many blocks start while the one ahead still runs, if it is to."""
        return {"FOLLOWS": 1} if self.follows and blocks <= FEW_BLOCKS else {}

    def kernel(self, path: str, more: str, dtype: torch.dtype, **defines: object) -> Kernel:
        """The entry of `path`, with the parameters `more` between the tensors and their length."""
        tensors = " ".join(f"{name}*" for name in (*self.inputs, *self.outputs))
        signature = f"{tensors} {more} {'op:struct' if self.scalars else ''} n:i64"
        fixed = {"ELEMENT": ctype(dtype), "BLOCK": self.block, "UNROLL": self.unroll}
        return self.source.kernel(f"{self.name}_{path}", signature, **fixed, **defines)


@remembered
def _contiguous(op: Elementwise, n: int, dtype: torch.dtype, width: int, defines: Defines) -> BoundLaunch:
    blocks = cdiv(n, op.block * op.unroll * width)
    kernel = op.kernel("contiguous", "", dtype, WIDTH=width, **op.early(blocks), **dict(defines))
    return kernel.bind(blocks, op.block, n, follows=bool(op.early(blocks)))


@remembered
def _strided(
    op: Elementwise,
    shape: tuple[int, ...],
    strides: tuple[Strides, ...],
    dtype: torch.dtype,
    width: int,
    defines: Defines,
) -> Callable[..., None]:
    size, strides = collapse(tuple(shape), strides)
    width = _strided_width(size, strides, width)
    units = prod(size) // width
    index, blocks = "int" if units < 2**31 else "i64", cdiv(units, op.block * op.unroll)
    more = {**op.early(blocks), **dict(defines)}
    kernel = op.kernel("strided", "layout:struct", dtype, WIDTH=width, RANK=len(size), INDEX=index, **more)
    launch = kernel.bind(blocks, op.block, units, follows="FOLLOWS" in more)
    layout = _layout(size, strides, width)
    tensors = len(op.inputs) + len(op.outputs)
    return lambda *given: launch(*given[:tensors], layout, *given[tensors:])


def common_width(tensors: tuple[torch.Tensor, ...], widest: int = ACCESS_BYTES) -> int:
    """Elements per access: the widest access that every base address is a multiple of."""
    addresses = widest
    for x in tensors:
        addresses |= x.data_ptr()
    return _elements(addresses, widest, tensors[0])


def _elements(addresses: int, widest: int, x: torch.Tensor) -> int:
    """Elements of x per access, for the bitwise or of all addresses."""
    return max(1, min(widest, addresses & -addresses) // x.element_size())


def collapse(shape: tuple[int, ...], strides: tuple[Strides, ...]) -> tuple[tuple[int, ...], tuple[Strides, ...]]:
    """Drops dimensions of size 1 and merges neighbours that every input walks as one; some dimension is longer than 1."""
    sizes: list[int] = []
    kept: list[list[int]] = []  # one list of strides per dimension, over the inputs
    for size, *step in zip(shape, *strides, strict=True):
        if size == 1:
            continue
        if kept and all(outer == inner * size for outer, inner in zip(kept[-1], step, strict=True)):
            sizes[-1], kept[-1] = sizes[-1] * size, step
        else:
            sizes, kept = [*sizes, size], [*kept, step]
    return tuple(sizes), tuple(zip(*kept, strict=True))


def _strided_width(size: tuple[int, ...], strides: tuple[Strides, ...], width: int) -> int:
    """Elements per access when the innermost dimension is dense in every input; 1 where it is not."""
    if any(step[-1] != 1 for step in strides):
        return 1
    steps = [size[-1], *(outer for step in strides for outer in step[:-1])]
    while any(step % width for step in steps):
        width //= 2
    return width


def _layout(size: tuple[int, ...], strides: tuple[Strides, ...], width: int) -> bytes:
    """The kernel's Layout struct, in units of `width` elements: the innermost size shrinks, outer strides shrink."""

    def units(values: tuple[int, ...], last: int) -> list[int]:
        return [*(value // width for value in values[:-1]), last]

    words = [*size[:-1], size[-1] // width]
    for step in strides:
        words += units(step, step[-1])
    return np.array(words, np.int64).tobytes()
