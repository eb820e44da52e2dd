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

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda

from kernelmux.backends.triton._families.elementwise import ACCESS_BYTES, MapLaunch
from kernelmux.backends.triton._families.reduction_rules import access_width, parts, peeled, rows_in_one, rule
from kernelmux.backends.triton._launch.launch import Config, cdiv, overlaps, plan
from kernelmux.backends.triton._launch.strides import Ints, collapse, contiguous
from kernelmux.backends.triton._rows.rows import Walk, walk
from kernelmux.registry.backend import Implementation


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
def _read_ends(
    ins, rows, head, tail, length, mask, combine: tl.constexpr, better: tl.constexpr, IDENTITY: tl.constexpr,
    INDEXED: tl.constexpr, PEEL: tl.constexpr,
):  # fmt: skip
    """What lies before and behind the whole accesses of rows, all [ROWS]: `head` elements, and those from `tail` on."""
    lane = tl.arange(0, 2 * PEEL)[None, :]
    place = tl.where(lane < PEEL, lane, lane - PEEL + tail[:, None])
    wanted = mask[:, None] & (place < tl.where(lane < PEEL, head[:, None], length))
    value = tl.load(ins[0] + rows[:, None] + place, mask=wanted, other=IDENTITY).to(tl.float32)
    return _along(value, tl.where(wanted, place, 2**31 - 1), combine, better, INDEXED)


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
def _along(value, index, combine: tl.constexpr, better: tl.constexpr, INDEXED: tl.constexpr):
    """Combine the lanes of each row: the best value, then the least of its indices.

    Two reductions of one number take less than one of two.
    """
    result = _along_rows(value, combine)
    place = result
    if INDEXED:
        most: tl.constexpr = 2**31 - 1 if index.dtype == tl.int32 else 2**63 - 1
        place = tl.min(tl.where(better(value, result[:, None]), most, index), 1)
    return result, place


@triton.jit
def _write(outs, offs, mask, result, place, finish: tl.constexpr, INDEXED: tl.constexpr, LAST: tl.constexpr):
    """The states of rows, or their results, all [ROWS]."""
    if INDEXED:
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
    PEEL: the elements of an access if rows start anywhere between two of them, else 0: what lies before the first whole one
    and behind the last is read apart. More than one block of a row: ROWS = 1.
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
    starts, head, tail = rows, rows, rows
    if PEEL:
        first_access, last_access = tl.cdiv(rows, PEEL), (rows + N) // PEEL
        rows = first_access * PEEL
        head, tail = rows - starts, last_access * PEEL - starts
        at += head.to(tl.int32)[:, None]
        N = tl.max(last_access - first_access, 0) * PEEL  # of the only row, unless one block has them whole
    offs = rows[:, None] + (cols.to(tl.int64) * step)[None, :]

    # [ROWS, BLOCK_N]: one state per lane, so that the loop needs no reduction.
    if ONCE:
        if PEEL:
            left = tl.minimum(last_access - first_access - begin // PEEL, BLOCK_N // PEEL).to(tl.int32) * PEEL
            mask = mask_rows[:, None] & (cols[None, :] < left[:, None])
        elif not EVEN:
            mask = mask_rows[:, None] & (begin + at < N)
        value, index = _read(ins, begin * step, offs, at, mask, IDENTITY)
        index = tl.broadcast_to(index, [ROWS, BLOCK_N])
    else:
        value = tl.full([ROWS, BLOCK_N], IDENTITY, tl.float32)
        index = tl.zeros([ROWS, BLOCK_N], tl.int32 if len(ins) == 1 else tl.int64)
        end = tl.minimum(begin + blocks * BLOCK_N, N) - begin
        whole = end // BLOCK_N * BLOCK_N
        for start in range(0, whole, BLOCK_N):
            x, i = _read(ins, (begin + start) * step, offs, at + tl.cast(start, tl.int32), mask, IDENTITY)
            value, index = _merge(value, index, x, i, combine, better, INDEXED)
        if not EVEN:
            if whole < end:
                rest = mask_rows[:, None] & (begin + whole + cols[None, :] < N)
                x, i = _read(ins, (begin + whole) * step, offs, at + whole.to(tl.int32), rest, IDENTITY)
                value, index = _merge(value, index, x, i, combine, better, INDEXED)
    result, place = _along(value, index, combine, better, INDEXED)
    if PEEL:
        wanted = mask_rows & (part == 0)
        x, i = _read_ends(ins, starts, head, tail, length * WIDTH, wanted, combine, better, IDENTITY, INDEXED, PEEL)
        if INDEXED:
            place = tl.where(better(result, x), i, tl.where(better(x, result), place, tl.minimum(place, i)))
        result = combine(result, x)

    shift = begin * 0
    if len(ins) == 1:
        shift = begin + ((block // tl.cdiv(inner, ROWS)).to(tl.int64) * inner + within) * per_row
    out_rows, _ = _rows(block, sizes, out_strides, inner, 1, ROWS)
    if INDEXED:
        place += shift
    _write(outs, out_rows + part * out_step, mask_rows, result, place, finish, INDEXED, LAST)


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
    folded = 1 if reduction.indexed or follows else rows_in_one(w, itemsize, device)
    if folded > 1:  # the same memory as fewer and longer rows
        shape, axis = (w.length // folded, folded * w.sizes[0]), 0
        strides = contiguous(shape)
        w = _walk(shape, strides, (1, shape[1]), 0)
    config = rule(w, itemsize, reduction.indexed, device)
    config["PEEL"] = 0 if follows else peeled(w, itemsize)
    block, length = config["BLOCK_N"], w.length
    blocks = cdiv(cdiv(length, parts(w, itemsize, config, device) if split else 1), block)
    count = cdiv(length, blocks * block) if length else 1
    made = (*shape[:axis], count, *shape[axis + 1 :])  # the partial states
    ends = last and count == folded == 1
    meta: Config = {"LEADS": overlaps(device) and not ends, "FOLLOWS": overlaps(device) and follows}
    meta |= {"launch_pdl": True} if meta["FOLLOWS"] else {}
    cut = (count, contiguous(made)[axis], blocks, per_row)
    launch = _launch(reduction, _walk(shape, strides, made, axis), itemsize, cut, ends, config | meta)
    first = ReductionStep(launch, None if ends else made, reduction.indexed)
    if count == folded == 1:
        return (first,)
    if folded > 1:
        made = (count * folded, shape[1] // folded)
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
    width = access_width(w, ACCESS_BYTES // itemsize)
    if w.along:
        sizes, length = w.sizes, w.length // width
        units, step = tuple(s // width for s in strides), min(step, 1)
    else:
        sizes, length = (*w.sizes[:-1], w.sizes[-1] // width), w.length
        units, step = (*(s // width for s in strides[:-1]), strides[-1]), step // width
    even = w.length == count * blocks * block > 0 and not meta["PEEL"]
    once = blocks == 1 and (even or meta["PEEL"] or width * itemsize == ACCESS_BYTES)
    return MapLaunch(
        reduce_kernel, (*w.grid(rows), count), sizes, out_strides, units, length, out_step, step, blocks, per_row,
        combine=reduction.combine, better=reduction.better, finish=reduction.finish,
        IDENTITY=reduction.identity, INDEXED=reduction.indexed, WIDTH=width, ALONG=w.along,
        EVEN_ROWS=w.sizes[-1] % rows == 0, EVEN=even, ONCE=once, LAST=ends,
        outputs=1 if ends else 1 + reduction.indexed, **meta,
    )  # fmt: skip


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
