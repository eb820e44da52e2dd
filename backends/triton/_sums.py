"""Sums along one axis: one kernel, and the plan of its launches, for reduce_sum and for ops that end in a sum.

Where rows are too few to fill the GPU the axis is cut into chunks, summed to fp32, and those are summed again. There
are no atomics, so the bits do not depend on which chunk ends first.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch import Config, Launch, cdiv, plan
from kernelmux.backends.triton._rows import Walk, clamp, next_power, row_offsets, walk
from kernelmux.backends.triton._strides import Ints, contiguous

# Programs that keep an H200's 132 SMs busy, at 8 each.
PROGRAMS = 1056
# Bytes per program once an axis is cut: a whole tile along it, eight steps of a tile across it.
CHUNK_ALONG = 32768
CHUNK_ACROSS = 131072


class Step(NamedTuple):
    """One launch, called with output and input; the shape of the fp32 sums that it makes, None if it is the last."""

    launch: Launch
    sums: Ints | None


@triton.jit
def sum_kernel(
    out_ptr, x_ptr, sizes, out_strides, x_strides, N, out_step, x_step, chunk, ROWS: tl.constexpr, BLOCK_N: tl.constexpr
):
    block = tl.program_id(0)
    part = tl.program_id(1)
    x_rows, mask_rows = row_offsets(block, sizes, x_strides, ROWS)
    out_rows, _ = row_offsets(block, sizes, out_strides, ROWS)

    # [ROWS, BLOCK_N]: one sum per lane, so that the loop needs no reduction.
    total = tl.zeros([ROWS, BLOCK_N], tl.float32)
    begin = part.to(tl.int64) * chunk
    end = tl.minimum(begin + chunk, N)
    for start in range(begin, end, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        mask = mask_rows[:, None] & (cols < end)[None, :]
        offs = x_rows[:, None] + (cols * x_step)[None, :]
        total += tl.load(x_ptr + offs, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)

    out = tl.sum(total, 1).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + out_rows + part * out_step, out, mask=mask_rows)


def rule(w: Walk, itemsize: int) -> Config:
    """A tile of about 16 KiB: 64 bytes in flight per thread and step."""
    if w.along:
        # H200, 8192 columns: 90 (fp32) and 82 % (bf16) of the copy rate with 2048 by 4; 8192 by 16 reach 77 and 76 %.
        block = min(next_power(w.length), 2048)
        return {"ROWS": clamp(2048 // block, 1, next_power(w.sizes[-1])), "BLOCK_N": block, "num_warps": 4}
    # 512 bytes of each row; 128 where that would leave SMs without work.
    small = math.prod(w.sizes) * w.length * itemsize < 2 * PROGRAMS * CHUNK_ACROSS // 8
    rows = clamp((128 if small else 512) // itemsize, 1, next_power(w.sizes[-1]))
    return {"ROWS": rows, "BLOCK_N": clamp(next_power(w.length), 1, 4096 // rows), "num_warps": 8}


def parts(w: Walk, itemsize: int) -> int:
    """How many chunks the axis is worth cutting into."""
    config = rule(w, itemsize)
    tiles = w.grid(config["ROWS"])[0]
    chunk = (CHUNK_ALONG if w.along else CHUNK_ACROSS) // itemsize // config["ROWS"]
    return 1 if tiles >= PROGRAMS or w.length < 2 * chunk else cdiv(w.length, chunk)


@plan
def steps(shape: Ints, strides: Ints, itemsize: int, axis: int, split: bool) -> tuple[Step, ...]:
    """The launches that sum a tensor along an axis, into a contiguous output with extent 1 there."""
    kept = (*shape[:axis], 1, *shape[axis + 1 :])
    count = parts(_walk(shape, strides, kept, axis), itemsize) if split else 1
    sums = (*shape[:axis], count, *shape[axis + 1 :])
    first = _launch(shape, strides, itemsize, axis, sums)
    return (Step(first, None),) if count == 1 else (Step(first, sums), *steps(sums, contiguous(sums), 4, axis, split))


def _walk(shape: Ints, strides: Ints, sums: Ints, axis: int) -> Walk:
    """Of the output, at rest along the axis, and the input."""
    out = contiguous(sums)
    return walk(axis, shape, (*out[:axis], 0, *out[axis + 1 :]), strides)


def _launch(shape: Ints, strides: Ints, itemsize: int, axis: int, sums: Ints) -> Launch:
    """One step, which cuts the axis into as many equal chunks as the output has there."""
    w = _walk(shape, strides, sums, axis)
    config = rule(w, itemsize)
    chunk = cdiv(cdiv(w.length, sums[axis]), config["BLOCK_N"]) * config["BLOCK_N"]
    grid = (*w.grid(config["ROWS"]), sums[axis])
    step = contiguous(sums)[axis]
    return Launch(sum_kernel, grid, w.sizes, *w.strides, w.length, step, w.steps[1], chunk, **config)


def run(todo: tuple[Step, ...], x: torch.Tensor, out: torch.Tensor) -> None:
    """Launch the steps in turn."""
    for launch, sums in todo:
        y = out if sums is None else torch.empty(sums, dtype=torch.float32, device=x.device)
        launch(y, x)
        x = y


def sum_first(x: torch.Tensor, out: torch.Tensor) -> None:
    """Sums over the first axis of contiguous x, into an output of as many elements as each slice has."""
    count = out.numel()
    run(steps((x.shape[0], count), (count, 1), x.element_size(), 0, True), x, out)
