"""Sums along one axis: one kernel, and the plan of its launches, for reduce_sum and for ops that end in a sum.

Where rows are too few to fill the GPU the axis is cut into chunks, summed to fp32, and those are summed again. There
are no atomics, so the bits do not depend on which chunk ends first. The launch of the second step overlaps the end of
the first (programmatic dependent launch), because starting a kernel costs as much as what is left to add.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda

from kernelmux.backends.triton._launch import Config, Launch, cdiv, overlaps, plan
from kernelmux.backends.triton._rows import Walk, clamp, next_power, row_offsets, walk
from kernelmux.backends.triton._strides import Ints, contiguous

# Programs that keep an H200's 132 SMs busy, at 8 each.
PROGRAMS = 1056
# A row longer than this is walked by its program in shorter blocks, or cut.
WHOLE = 8192
# Bytes of a chunk across the rows, and of a tensor that has not enough of them to go round.
CHUNK = 131072
SMALL = 2**24


class Step(NamedTuple):
    """One launch, called with output and input; the shape of the fp32 sums that it makes, None if it is the last."""

    launch: Launch
    sums: Ints | None


@triton.jit
def _load(x_ptr, x_rows, x_step, start, end, mask_rows, EVEN: tl.constexpr, BLOCK_N: tl.constexpr):
    cols = start + tl.arange(0, BLOCK_N)
    x_ptrs = x_ptr + x_rows[:, None] + (cols * x_step)[None, :]
    if EVEN:
        return tl.load(x_ptrs, eviction_policy="evict_first").to(tl.float32)
    mask = mask_rows[:, None] & (cols < end)[None, :]
    return tl.load(x_ptrs, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)


@triton.jit
def sum_kernel(
    out_ptr, x_ptr, sizes, out_strides, x_strides, N, out_step, x_step, chunk,
    EVEN: tl.constexpr, ONCE: tl.constexpr, FOLLOWS: tl.constexpr, LEADS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    if FOLLOWS:
        cuda.gdc_wait()
    if LEADS:
        cuda.gdc_launch_dependents()
    block = tl.program_id(0)
    part = tl.program_id(1)
    x_rows, mask_rows = row_offsets(block, sizes, x_strides, ROWS)
    out_rows, _ = row_offsets(block, sizes, out_strides, ROWS)
    begin = part.to(tl.int64) * chunk
    end = tl.minimum(begin + chunk, N)

    # [ROWS, BLOCK_N]: one sum per lane, so that the loop needs no reduction.
    if ONCE:
        total = _load(x_ptr, x_rows, x_step, begin, end, mask_rows, EVEN, BLOCK_N)
    else:
        total = tl.zeros([ROWS, BLOCK_N], tl.float32)
        for start in range(begin, end, BLOCK_N):
            total += _load(x_ptr, x_rows, x_step, start, end, mask_rows, EVEN, BLOCK_N)

    out = tl.sum(total, 1).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + out_rows + part * out_step, out, mask=mask_rows)


def rule(w: Walk, itemsize: int) -> Config:
    """The tile of a program."""
    if w.along:
        # H200, 8192 columns, in one step: 90 (fp32) and 87 % (bf16) of the copy rate; in four steps 89 and 82 %.
        whole = w.length <= WHOLE or math.prod(w.sizes) < PROGRAMS
        block = min(next_power(w.length), WHOLE if whole else WHOLE // 4)
        rows = clamp(2048 // block, 1, next_power(w.sizes[-1]))
        return {"ROWS": rows, "BLOCK_N": block, "num_warps": clamp(rows * block // 512, 4, 16)}
    # 1 KiB of each row; of a small tensor 128 bytes, or as much as 4096 elements need, so that all SMs have work.
    if math.prod(w.sizes) * w.length * itemsize <= SMALL:
        rows = max(128 // itemsize, 4096 // next_power(w.length))
    else:
        rows = 1024 // itemsize
    rows = clamp(rows, 1, next_power(w.sizes[-1]))
    return {"ROWS": rows, "BLOCK_N": min(next_power(w.length), 4096 // rows), "num_warps": 4}


def parts(w: Walk, itemsize: int) -> int:
    """How many chunks the axis is worth cutting into."""
    rows = rule(w, itemsize)["ROWS"]
    chunk = WHOLE if w.along else CHUNK // itemsize // rows
    return 1 if w.grid(rows)[0] >= PROGRAMS or w.length < 2 * chunk else cdiv(w.length, chunk)


@plan
def steps(
    device: int, shape: Ints, strides: Ints, itemsize: int, axis: int, split: bool, follows: bool = False
) -> tuple[Step, ...]:
    """The launches that sum a tensor along an axis, into a contiguous output with extent 1 there.

    split: in chunks, if that is worth it. follows: the tensor is what the launch before has made.
    """
    kept = (*shape[:axis], 1, *shape[axis + 1 :])
    count = parts(_walk(shape, strides, kept, axis), itemsize) if split else 1
    sums = (*shape[:axis], count, *shape[axis + 1 :])
    meta: Config = {"LEADS": overlaps(device) and count > 1, "FOLLOWS": overlaps(device) and follows}
    meta |= {"launch_pdl": True} if meta["FOLLOWS"] else {}
    first = _launch(shape, strides, itemsize, axis, sums, meta)
    if count == 1:
        return (Step(first, None),)
    return (Step(first, sums), *steps(device, sums, contiguous(sums), 4, axis, split, True))


def _walk(shape: Ints, strides: Ints, sums: Ints, axis: int) -> Walk:
    """Of the output, at rest along the axis, and the input."""
    out = contiguous(sums)
    return walk(axis, shape, (*out[:axis], 0, *out[axis + 1 :]), strides)


def _launch(shape: Ints, strides: Ints, itemsize: int, axis: int, sums: Ints, meta: Config) -> Launch:
    """One step, which cuts the axis into as many equal chunks as the output has there."""
    w = _walk(shape, strides, sums, axis)
    config = rule(w, itemsize)
    rows, block = config["ROWS"], config["BLOCK_N"]
    chunk = cdiv(cdiv(w.length, sums[axis]), block) * block
    even = w.sizes[-1] % rows == 0 and w.length == chunk * sums[axis] > 0
    return Launch(
        sum_kernel, (*w.grid(rows), sums[axis]), w.sizes, *w.strides, w.length, contiguous(sums)[axis], w.steps[1],
        chunk, EVEN=even, ONCE=chunk == block, **meta, **config,
    )  # fmt: skip


def run(todo: tuple[Step, ...], x: torch.Tensor, out: torch.Tensor) -> None:
    """Launch the steps in turn."""
    for launch, sums in todo:
        y = out if sums is None else torch.empty(sums, dtype=torch.float32, device=x.device)
        launch(y, x)
        x = y


def sum_first(device: int, count: int, length: int) -> tuple[Step, ...]:
    """The steps that add `count` contiguous rows of fp32, which the launch before has made."""
    return steps(device, (count, length), (length, 1), 4, 0, True, True)
