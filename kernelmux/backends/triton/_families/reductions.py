"""Reductions along one axis or of everything: one kernel, and the plan of its launches.

An operator is a `ReductionOperator`: how two values become one, and what the value of nothing is; one that carries an index
combines pairs (value, index). Values are fp32 throughout and rounded once, when the last step stores them.

    SUM = Reduction(_plus, 0.0)
    reduce(SUM, x, axis, keepdim)

Where results are too few to fill the GPU the axis is cut into chunks, reduced to partial states, and those are reduced
again. There are no atomics, so the bits do not depend on which chunk ends first. The launch of the second step overlaps
the end of the first (programmatic dependent launch), because starting a kernel costs as much as what is left to do.

Accesses are 16 bytes wide wherever rows and strides are multiples of that: lengths arrive in units of WIDTH elements, so
that the compiler knows. Only the block that crosses the end of the axis has a mask.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda

from kernelmux.backends.triton._families.elementwise import ACCESS_BYTES, MapLaunch
from kernelmux.backends.triton._launch.card import per_processor
from kernelmux.backends.triton._launch.launch import Config, cdiv, overlaps, plan, processors
from kernelmux.backends.triton._launch.strides import Ints, collapse, contiguous
from kernelmux.backends.triton._rows.rows import Walk, clamp, next_power, walk
from kernelmux.registry.backend import Implementation

PROGRAMS = 8  # that keep a multiprocessor busy
WHOLE = 8192  # a row longer than this is walked by its program in shorter blocks, or cut
TILE = 4096  # elements of a tile whose columns are reduced


class ColumnRule(NamedTuple):
    """Up to `most` bytes: a tile's bytes of each row, least elements and warps; programs; bytes of the least chunk."""

    most: int
    across: int
    short: int
    num_warps: int
    programs: int
    chunk: int


# H200, cold L2: reduce_max of 4501 x 144 in bf16 takes 7.7 us in 16 chunks, 21.8 in one; reduce_sum of 320 x 5444 6.7 us a
# sector at a time, 12.2 by tiles of 128 bytes and of 64 rows.
COLUMNS = (
    ColumnRule(2**22, 32, TILE // 8, 4, 528, 8192),
    ColumnRule(2**24, 64, TILE, 4, 1056, 16384),
    ColumnRule(2**27, 128, TILE, 8, 528, 16384),
    ColumnRule(2**62, 128, TILE, 8, 1056, 16384),
)


@triton.jit
def _value(value):
    return value


@dataclass(frozen=True, eq=False)
class ReductionOperator:
    """What an operator reduces by.

    combine: a jit function of two fp32 values that gives one. The order of its calls is fixed by the shape, and is not the
    order of the elements. identity: the value of nothing, with any index. finish: gives the result from a value, or from a
    value and an index. dtype: of the result, if not that of the input. better: where the first index of the best value is
    asked for, a jit function that says whether the second of two values is better; `combine` gives the better of two.
    """

    combine: Any
    identity: float
    finish: Any = _value
    dtype: torch.dtype | None = None
    better: Any = None

    @property
    def indexed(self) -> bool:
        return self.better is not None


class ReductionStep(NamedTuple):
    """One launch, called with outputs and inputs; the shape of the partial states it makes, None if it is the last."""

    launch: MapLaunch
    partial: Ints | None
    indexed: bool = False


@triton.jit
def _rows(block, sizes, strides, inner, UNIT: tl.constexpr, ROWS: tl.constexpr):
    """Offset of the first element of each of this program's rows, [ROWS], and the numbers of the rows in their line.

    inner: the length of the innermost dimension; strides, but for that of it, are in units of UNIT elements.
    """
    per_line = tl.cdiv(inner, ROWS)
    within = (block % per_line) * ROWS + tl.arange(0, ROWS)
    rest = block // per_line
    base = rest.to(tl.int64) * 0
    for dim in tl.static_range(len(sizes) - 2, -1, -1):
        base += (rest % sizes[dim]).to(tl.int64) * strides[dim]
        rest = rest // sizes[dim]
    return base * UNIT + within.to(tl.int64) * strides[-1], within


@triton.jit
def _read(ins, first, offs, at, mask, IDENTITY: tl.constexpr):
    """The states of a tile from `first` on: values, and their indices, which are `at` unless there is a tensor of them."""
    if mask is None:
        value = tl.load(ins[0] + first + offs, eviction_policy="evict_first").to(tl.float32)
    else:
        value = tl.load(ins[0] + first + offs, mask=mask, other=IDENTITY, eviction_policy="evict_first").to(tl.float32)
    if len(ins) == 2:
        at = tl.load(ins[1] + first + offs, mask=mask, eviction_policy="evict_first")
    return value, at


@triton.jit
def _merge(value, index, x, at, combine: tl.constexpr, better: tl.constexpr, INDEXED: tl.constexpr):
    """Two states of which the second comes from elements behind those of the first."""
    if INDEXED:
        second = better(value, x)
        value, index = tl.where(second, x, value), tl.where(second, at, index)
    else:
        value = combine(value, x)
    return value, index


@tl.core.builtin
def _along_rows(states, combine, _semantic=None, _generator=None):
    """tl.reduce over the rows of a tile by a constant."""
    return tl.reduce(states, 1, combine.value, _semantic=_semantic, _generator=_generator)


@triton.jit
def _write(
    outs, offs, mask, value, index, shift,
    combine: tl.constexpr, better: tl.constexpr, finish: tl.constexpr, INDEXED: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Combine the lanes of each row and write its state, or the result; shift: what is to be added to indices, [ROWS]."""
    result = _along_rows(value, combine)
    if INDEXED:
        # The best value, then the least of its indices: two reductions of one number take less than one of two.
        most: tl.constexpr = 2**31 - 1 if index.dtype == tl.int32 else 2**63 - 1
        place = tl.min(tl.where(better(value, result[:, None]), most, index), 1) + shift
        if LAST:
            result = finish(result, place)
        else:
            tl.store(outs[1] + offs, place, mask=mask)
    elif LAST:
        result = finish(result)
    tl.store(outs[0] + offs, result.to(outs[0].dtype.element_ty), mask=mask)


@triton.jit
def reduce_kernel(
    outs, ins, numbers, sizes, out_strides, x_strides, length, out_step, x_step, blocks, per_row,
    combine: tl.constexpr, better: tl.constexpr, finish: tl.constexpr, IDENTITY: tl.constexpr, INDEXED: tl.constexpr,
    WIDTH: tl.constexpr, PEEL: tl.constexpr, ALONG: tl.constexpr, EVEN_ROWS: tl.constexpr, EVEN: tl.constexpr,
    ONCE: tl.constexpr, LAST: tl.constexpr, FOLLOWS: tl.constexpr, LEADS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """ins: a tensor, or the partial states of a step before: values and indices. outs: likewise, or the result.

    Along a contiguous axis its length and the strides of rows are in units of WIDTH elements; across one the length of
    the innermost dimension and all other strides. blocks: of a chunk. per_row: by how much the index grows from row to row.
    PEEL: ROWS = 1, and the row is walked from the last multiple of so many elements before it, if not 0.
    """
    if FOLLOWS:
        cuda.gdc_wait()
    if LEADS:
        cuda.gdc_launch_dependents()
    block = tl.program_id(0)
    part = tl.program_id(1)
    if ALONG:
        N, step, inner = length * WIDTH, x_step, sizes[-1]
        rows, within = _rows(block, sizes, x_strides, inner, 1, ROWS)
        rows *= WIDTH
    else:
        N, step, inner = length, x_step * WIDTH, sizes[-1] * WIDTH
        rows, within = _rows(block, sizes, x_strides, inner, WIDTH, ROWS)
    mask_rows = within < inner
    mask = None if EVEN_ROWS else mask_rows[:, None]
    begin = part.to(tl.int64) * (blocks * BLOCK_N)
    cols = tl.arange(0, BLOCK_N)
    at = cols[None, :]  # indices from `begin` on, in 32 bits
    before = 0
    if PEEL:
        skipped = tl.sum(rows % PEEL, 0)
        rows = rows // PEEL * PEEL
        at, before = at - skipped.to(tl.int32), skipped
    offs = rows[:, None] + (cols.to(tl.int64) * step)[None, :]

    # [ROWS, BLOCK_N]: one state per lane, so that the loop needs no reduction.
    if ONCE:
        if not EVEN:
            mask = mask_rows[:, None] & (begin + at < N)
        value, index = _read(ins, begin * step, offs, at, mask, IDENTITY)
        index = tl.broadcast_to(index, [ROWS, BLOCK_N])
    else:
        value = tl.full([ROWS, BLOCK_N], IDENTITY, tl.float32)
        index = tl.zeros([ROWS, BLOCK_N], tl.int32 if len(ins) == 1 else tl.int64)
        end = tl.minimum(begin + blocks * BLOCK_N, N + before) - begin
        whole = end // BLOCK_N * BLOCK_N
        first = 0
        if PEEL:
            first = (part == 0).to(tl.int64) * BLOCK_N
            if part == 0:
                x, i = _read(ins, 0, offs, at, (at >= 0) & (at < N), IDENTITY)
                value, index = _merge(value, index, x, i, combine, better, INDEXED)
        for start in range(first, whole, BLOCK_N):
            x, i = _read(ins, (begin + start) * step, offs, at + tl.cast(start, tl.int32), mask, IDENTITY)
            value, index = _merge(value, index, x, i, combine, better, INDEXED)
        if not EVEN:
            if tl.maximum(first, whole) < end:
                rest = mask_rows[:, None] & (begin + whole + at < N)
                x, i = _read(ins, (begin + whole) * step, offs, at + whole.to(tl.int32), rest, IDENTITY)
                value, index = _merge(value, index, x, i, combine, better, INDEXED)

    shift = begin * 0
    if len(ins) == 1:
        shift = begin + ((block // tl.cdiv(inner, ROWS)).to(tl.int64) * inner + within) * per_row
    out_rows, _ = _rows(block, sizes, out_strides, inner, 1, ROWS)
    _write(outs, out_rows + part * out_step, mask_rows, value, index, shift, combine, better, finish, INDEXED, LAST)


def rule(w: Walk, itemsize: int, indexed: bool, device: int) -> Config:
    """The tile of a program; smaller where every lane has an index too, and two of them take longer to combine."""
    if w.along:
        # H200, 8192 columns, in one step: 90 (fp32) and 87 % (bf16) of the copy rate; in four steps 89 and 82 %.
        few, even = math.prod(w.sizes) < PROGRAMS * processors(device), not _uneven(w, itemsize)
        whole = few or (even and w.length <= WHOLE)
        long = even and w.length >= 4 * WHOLE  # so that blocks which cross an end are a small part of the row
        block = min(next_power(w.length), WHOLE if few or ((whole or long) and not indexed) else WHOLE // 4)
        rows = clamp(2048 // block, 1, next_power(w.sizes[-1]))
        # By what there is, not by the tile: 20264 rows of 4600, fp16, take 49.4 us by 8 warps, 62.9 by 16.
        warps = clamp(next_power(rows * min(block, w.length) // 512 + 1) // 2, 4, 16 if whole else 8)
        return {"ROWS": rows, "BLOCK_N": block, "num_warps": warps}
    c = _columns(w, itemsize, device)
    across, short = c.across // itemsize, c.short // next_power(w.length)
    rows = clamp(max(across, short), 1, next_power(w.sizes[-1]))
    warps = 4 if short > across else c.num_warps
    return {"ROWS": rows, "BLOCK_N": min(next_power(w.length), TILE // rows), "num_warps": warps}


def _columns(w: Walk, itemsize: int, device: int) -> ColumnRule:
    """How columns are reduced."""
    total = math.prod(w.sizes) * w.length * itemsize
    return next(c for c in COLUMNS if total <= per_processor(c.most, device))


def parts(w: Walk, itemsize: int, config: Config, device: int) -> int:
    """How many chunks the axis is worth cutting into; columns into equal ones, so that all programs run at once."""
    programs, most = w.grid(config["ROWS"])[0], PROGRAMS * processors(device)
    if w.along:
        return 1 if programs >= most or w.length < 2 * WHOLE else cdiv(w.length, WHOLE)
    c = _columns(w, itemsize, device)
    least = max(c.chunk // itemsize // config["ROWS"], config["BLOCK_N"])
    if w.length <= 2 * least:
        return 1
    return clamp(per_processor(c.programs, device) // programs, 1, w.length // least)


@plan
def steps(
    reduction: ReductionOperator, device: int, shape: Ints, strides: Ints, itemsize: int, axis: int, split: bool,
    per_row: int = 0, last: bool = True, follows: bool = False,
) -> tuple[ReductionStep, ...]:  # fmt: skip
    """The launches that reduce a tensor along an axis, into a contiguous output with extent 1 there.

    split: in chunks, if that is worth it. per_row: by how much the index of a first element grows from row to row. last:
    ends in the result, not in states. follows: the tensors are the states that the launch before has made.
    """
    kept = (*shape[:axis], 1, *shape[axis + 1 :])
    w = _walk(shape, strides, kept, axis)
    config = rule(w, itemsize, reduction.indexed, device)
    config["PEEL"] = _peel(w, itemsize, config)
    block, length = config["BLOCK_N"], w.length + max(0, config["PEEL"] - 1)
    blocks = cdiv(cdiv(length, parts(w, itemsize, config, device) if split else 1), block)
    count = cdiv(length, blocks * block) if length else 1
    made = (*shape[:axis], count, *shape[axis + 1 :])  # the partial states
    ends = last and count == 1
    meta: Config = {"LEADS": overlaps(device) and not ends, "FOLLOWS": overlaps(device) and follows}
    meta |= {"launch_pdl": True} if meta["FOLLOWS"] else {}
    cut = (count, contiguous(made)[axis], blocks, per_row)
    launch = _launch(reduction, _walk(shape, strides, made, axis), itemsize, cut, ends, config | meta)
    first = ReductionStep(launch, None if ends else made, reduction.indexed)
    if count == 1:
        return (first,)
    return (first, *steps(reduction, device, made, contiguous(made), 4, axis, split, 0, last, True))


def _walk(shape: Ints, strides: Ints, made: Ints, axis: int) -> Walk:
    """Of the output, at rest along the axis, and the input."""
    out = contiguous(made)
    return walk(axis, shape, (*out[:axis], 0, *out[axis + 1 :]), strides)


def _launch(
    reduction: ReductionOperator, w: Walk, itemsize: int, cut: tuple[int, int, int, int], ends: bool, meta: Config
) -> MapLaunch:
    """One step. cut: how many chunks, how far apart their states are written, how many blocks each of them has, and by
    how much the index grows from row to row. ends: in the result, not in states."""
    (count, out_step, blocks, per_row), rows, block = cut, meta["ROWS"], meta["BLOCK_N"]
    (out_strides, strides), step = w.strides, w.steps[1]
    width = _width(w, ACCESS_BYTES // itemsize)
    if w.along:
        sizes, length = w.sizes, w.length // width
        units, step = tuple(s // width for s in strides), min(step, 1)
    else:
        sizes, length = (*w.sizes[:-1], w.sizes[-1] // width), w.length
        units, step = (*(s // width for s in strides[:-1]), strides[-1]), step // width
    even = w.length == count * blocks * block > 0 and not meta["PEEL"]
    return MapLaunch(
        reduce_kernel, (*w.grid(rows), count), sizes, out_strides, units, length, out_step, step, blocks, per_row,
        combine=reduction.combine, better=reduction.better, finish=reduction.finish,
        IDENTITY=reduction.identity, INDEXED=reduction.indexed, WIDTH=width, ALONG=w.along,
        EVEN_ROWS=w.sizes[-1] % rows == 0, EVEN=even, ONCE=blocks == 1 and (even or width * itemsize == ACCESS_BYTES),
        LAST=ends, outputs=1 if ends else 1 + reduction.indexed, **meta,
    )  # fmt: skip


def _peel(w: Walk, itemsize: int, config: Config) -> int:
    """The elements of an access if long rows start anywhere between two of them, else 0."""
    long = config["ROWS"] == 1 and w.length >= 2 * config["BLOCK_N"]
    return ACCESS_BYTES // itemsize if long and _uneven(w, itemsize) else 0


def _uneven(w: Walk, itemsize: int) -> bool:
    """Whether rows are contiguous, and start anywhere between two accesses."""
    widest = ACCESS_BYTES // itemsize
    return w.along and w.steps[1] == 1 and math.prod(w.sizes) > 1 and _width(w, widest) < widest


def _width(w: Walk, widest: int) -> int:
    """The widest access, in elements, that divides what lies contiguous and the distances between; 1 if nothing does."""
    strides, step = w.strides[1], w.steps[1]
    if w.along:
        return math.gcd(widest, w.length, *strides)
    return math.gcd(widest, w.sizes[-1], step, *strides[:-1]) if strides[-1] == 1 else 1


@plan
def everything(
    reduction: ReductionOperator, device: int, shape: Ints, strides: Ints, itemsize: int, split: bool, follows: bool = False
) -> tuple[ReductionStep, ...]:  # fmt: skip
    """All axes as one line where they are one; else states over the last axis, and the line of those."""
    if 0 in shape:
        return steps(reduction, device, (0,), (1,), itemsize, 0, split)
    sizes, (strides,) = collapse(shape, strides)
    kind = (reduction, device, sizes, strides, itemsize)
    if len(sizes) == 1:
        return steps(*kind, 0, split, 0, True, follows)
    made = (*sizes[:-1], 1)
    before = steps(*kind, len(sizes) - 1, split, sizes[-1], False, follows)
    return (*before, *everything(reduction, device, made, contiguous(made), 4, split, True))


def run(todo: tuple[ReductionStep, ...], x: torch.Tensor, out: torch.Tensor) -> None:
    """Launch the steps in turn."""
    states: tuple[torch.Tensor, ...] = (x,)
    for launch, partial, indexed in todo:
        made: tuple[torch.Tensor, ...] = (out,)
        if partial is not None:
            made = (torch.empty(partial, dtype=torch.float32, device=x.device),)
            if indexed:
                made = (*made, torch.empty(partial, dtype=torch.int64, device=x.device))
        launch(*made, *states)
        states = made


def reduce(
    reduction: ReductionOperator, x: torch.Tensor, axis: int | None, keepdim: bool, split: bool = True
) -> torch.Tensor:
    """The result along an axis or, with None, of everything. split: long axes in chunks, where results are few."""
    out = torch.empty(_shape(x.shape, axis, keepdim), dtype=reduction.dtype or x.dtype, device=x.device)
    if out.numel():
        kind = (reduction, x.get_device(), x.shape, x.stride(), x.element_size())
        run(everything(*kind, split) if axis is None else steps(*kind, axis, split), x, out)
    return out


def _shape(shape: Ints, axis: int | None, keepdim: bool) -> Ints:
    kept = (1,) * keepdim
    return kept * len(shape) if axis is None else (*shape[:axis], *kept, *shape[axis + 1 :])


def extremum_variant(combine: Any, identity: float) -> dict[str, Implementation]:
    """The reduction to one of the elements, as one variant; arguments as for `ReductionOperator`."""
    reduction = ReductionOperator(combine, identity)

    def extremum(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
        return reduce(reduction, x, axis, keepdim)

    return {"split": Implementation(fn=extremum, idea="long axes in chunks, then the chunks: no atomics")}
