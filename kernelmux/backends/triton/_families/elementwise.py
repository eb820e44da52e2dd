"""Elementwise family: a jit function of n fp32 values, and of numbers that a call gives, becomes an op of m outputs.

    elementwise(_silu, x)                                           one input, one output
    elementwise_all(_swiglu_backward, grad_out, a, b, outputs=2)    the function returns a tuple of two
    elementwise(_polynomial, x, scalars=(0.5, 0.0, 1.0, 2.0))       numbers at run time: no compilation per value

Every input is read once, computed with in fp32, and every output is rounded and written once.

Tensors that are contiguous are walked flat, 16 bytes per thread and access; the block that crosses the end is the only
one with a mask, because a mask whose length is not a multiple of the vector would make every access scalar.
All others are walked as rows of their innermost dimension, in tiles [BLOCK_M, BLOCK_N]: no copy, whatever the strides.
A row's index is taken apart into one index per dimension, once for a row of the tile and not once for an element. Where
the rows are dense (halves of a wider tensor, say) lengths and strides arrive in units of WIDTH elements, so that the
compiler knows that they are multiples of it, and accesses are as wide as in the flat walk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch.dependent import follow_previous, following
from kernelmux.backends.triton._launch.launch import Ints, Launch, cdiv, like, plan, processors
from kernelmux.backends.triton._launch.strides import collapse

# Bytes of one output per program, and its warps: 97 % (add) and 95 % (gelu) of the copy rate of an H200.
RULE = {"bytes": 4096, "num_warps": 4}
# Fewer while programs are fewer than so many to a multiprocessor. H200, bf16, us by 4096 bytes and so: gelu_backward of
# 3 x 15616 5.2 and 3.9, swiglu of 16 x 14336 4.7 and 4.1, gelu of 64 x 14336 4.8 and 4.5; by 1024 always that 4.9.
LEAST_BYTES, PROGRAMS = 1024, 4
FEW = 3  # tensors; beyond it half as many elements per program, which keep as many bytes in flight in fewer registers
ACCESS_BYTES = 16
TILE = 1024  # elements of a tile whose rows are not dense
TILE_COLUMNS = 32  # as many of its columns, so that inputs that run along the rows are read in whole sectors as well


class MapLaunch(Launch):
    """A launch whose kernel takes three tuples before its scalars: outputs, the other tensors, the numbers of the call."""

    __slots__ = ("outputs",)

    def __init__(self, kernel: Any, grid: Ints, *scalars: Any, outputs: int, **meta: Any) -> None:
        super().__init__(kernel, grid, *scalars, **meta)
        self.outputs = outputs

    def _grouped(self, values: Sequence[Any], numbers: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(values[: self.outputs]), tuple(values[self.outputs :]), tuple(numbers)


@triton.jit
def _apply(outs, ins, numbers, out_offs, in_offs, mask, formula: tl.constexpr):
    values = ()
    for i in tl.static_range(len(ins)):
        values += (tl.load(ins[i] + in_offs[i], mask=mask).to(tl.float32),)  # type: ignore[assignment]
    results = formula(*values, *numbers)
    if len(outs) == 1:
        tl.store(outs[0] + out_offs, results.to(outs[0].dtype.element_ty), mask=mask)
    else:
        for i in tl.static_range(len(outs)):
            tl.store(outs[i] + out_offs, results[i].to(outs[i].dtype.element_ty), mask=mask)


@triton.jit
def elementwise_flat_kernel(
    outs, ins, numbers, numel, formula: tl.constexpr, BLOCK: tl.constexpr, FOLLOWS: tl.constexpr = False
):
    follow_previous(FOLLOWS)
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offs = start + tl.arange(0, BLOCK)
    in_offs = ()
    for _ in tl.static_range(len(ins)):
        in_offs += (offs,)  # type: ignore[assignment]
    if start + BLOCK <= numel:
        _apply(outs, ins, numbers, offs, in_offs, None, formula)
    else:
        _apply(outs, ins, numbers, offs, in_offs, offs < numel, formula)


@triton.jit
def elementwise_strided_kernel(
    outs, ins, numbers, rows, units, sizes, steps,
    formula: tl.constexpr, DENSE: tl.constexpr, WIDTH: tl.constexpr, INDEX: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, FOLLOWS: tl.constexpr = False,
):  # fmt: skip
    """sizes: all dimensions but the innermost, which has units * WIDTH elements; steps: strides per input, innermost last.

    Strides of dense rows are in units of WIDTH as well.
    """
    follow_previous(FOLLOWS)
    columns = units * WIDTH
    tiles = tl.cdiv(columns, BLOCK_N)
    pid = tl.program_id(0)
    row = (pid // tiles).to(INDEX) * BLOCK_M + tl.arange(0, BLOCK_M).to(INDEX)  # [BLOCK_M]
    col = (pid % tiles).to(INDEX) * BLOCK_N + tl.arange(0, BLOCK_N).to(INDEX)  # [BLOCK_N]
    mask = (row < rows)[:, None] & (col < columns)[None, :]

    in_offs = ()
    for i in tl.static_range(len(ins)):
        # Innermost dimension first: its index varies fastest. The outermost needs no division.
        rest = row
        first = tl.zeros([BLOCK_M], tl.int64)  # offset of each row
        for dim in tl.static_range(len(sizes) - 1, -1, -1):
            index = rest if dim == 0 else rest % sizes[dim]
            rest = rest // sizes[dim]
            first += index.to(tl.int64) * (steps[i][dim] * WIDTH)
        within = col if DENSE else col.to(tl.int64) * steps[i][len(sizes)]
        in_offs += (first[:, None] + within[None, :],)  # type: ignore[assignment]

    _apply(outs, ins, numbers, row.to(tl.int64)[:, None] * columns + col[None, :], in_offs, mask, formula)


def elementwise(
    formula: Any, *inputs: torch.Tensor, scalars: tuple[float, ...] = (), follows: bool = False
) -> torch.Tensor:
    """formula(*inputs, *scalars), element by element, into a contiguous tensor like the first input.

    inputs: tensors of one shape, dtype and device, of any strides. scalars: fp32 numbers, no part of the compilation.
    follows: of few elements it starts while the kernel ahead still runs.
    """
    return elementwise_all(formula, *inputs, scalars=scalars, follows=follows)[0]


def elementwise_all(
    formula: Any, *inputs: torch.Tensor, outputs: int = 1, scalars: tuple[float, ...] = (), follows: bool = False
) -> tuple[torch.Tensor, ...]:
    """The same for a formula that returns a tuple, or one value where outputs = 1."""
    x = inputs[0]
    outs = tuple([like(x) for _ in range(outputs)])
    if x.numel():
        strides = tuple([t.stride() for t in inputs])
        launch = _plan(formula, x.get_device(), x.dtype, x.shape, strides, outputs, follows)
        launch(*outs, *inputs, numbers=scalars)
    return outs


@plan
def _plan(
    formula: Any, device: int, dtype: torch.dtype, shape: Ints, strides: tuple[Ints, ...], outputs: int, follows: bool
) -> MapLaunch:
    sizes, steps = collapse(shape, *strides)
    config = RULE
    many = outputs + len(strides) > FEW
    block, warps = config["bytes"] // (2 if many else 1) // dtype.itemsize, config["num_warps"]
    if len(sizes) == 1 and all(step == (1,) for step in steps):
        numel = sizes[0]
        while block * dtype.itemsize > LEAST_BYTES and cdiv(numel, block) < PROGRAMS * processors(device):
            block //= 2
        meta = {"formula": formula, "BLOCK": block, "num_warps": warps}
        early = following(device, cdiv(numel, block)) if follows else {}
        return MapLaunch(elementwise_flat_kernel, (cdiv(numel, block),), numel, outputs=outputs, **meta, **early)
    (*outer, columns), rows = sizes, math.prod(sizes[:-1])
    dense = all(step[-1] == 1 for step in steps)
    width = _width(columns, steps, ACCESS_BYTES // dtype.itemsize) if dense else 1
    block_m, block_n = _tile(rows, columns, block if dense else TILE, dense)
    units = tuple(tuple(s // width for s in step[:-1]) + step[-1:] for step in steps)
    if not outer:  # a single row, which has no dimension of its own
        outer, units = [1], tuple((0, *step) for step in units)
    programs = cdiv(rows, block_m) * cdiv(columns, block_n)
    return MapLaunch(
        elementwise_strided_kernel, (programs,),
        rows, columns // width, tuple(outer), units,
        outputs=outputs, formula=formula, DENSE=dense, WIDTH=width, BLOCK_M=block_m, BLOCK_N=block_n,
        INDEX=tl.int32 if rows * columns + block < 2**31 else tl.int64, num_warps=warps,
        **(following(device, programs) if follows else {}),
    )  # fmt: skip


def _width(columns: int, steps: tuple[Ints, ...], widest: int) -> int:
    """The widest access, in elements, that divides dense rows and the distances between them."""
    return math.gcd(widest, columns, *(s for step in steps for s in step[:-1]))


def _tile(rows: int, columns: int, elements: int, dense: bool) -> Ints:
    """Rows and columns of a tile: as long as the rows are, or nearly square where another order may be the dense one."""
    widest = elements if dense or rows == 1 else TILE_COLUMNS
    block_n = min(widest, triton.next_power_of_2(columns))
    return elements // block_n, block_n
