"""reduce_sum: the sum along one axis or of everything, accumulated in fp32, rounded once.

rows   one program per tile of rows walks the whole axis
split  an axis with too few rows to fill the GPU is cut into chunks, summed to fp32, then summed again: no atomics, so the
       bits do not depend on which chunk ends first
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch import cdiv, launch
from kernelmux.backends.triton._rows import Walk, clamp, neighbours, next_power, row_offsets, walk
from kernelmux.registry.backend import Implementation

# Programs that keep an H200's 132 SMs busy at 4 to 8 programs each, and the least a chunk is worth a program (bytes).
PROGRAMS = 1056
CHUNK_BYTES = 65536


@triton.jit
def reduce_sum_kernel(
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


def rule(w: Walk, itemsize: int) -> dict[str, int]:
    """A tile of 16 KiB: 64 bytes in flight per thread and step."""
    elements = 16384 // itemsize
    block = clamp(next_power(w.length), 1, elements if w.along else 64)
    return {"ROWS": neighbours(w, block, elements), "BLOCK_N": block, "num_warps": 8}


def sum_along(x: torch.Tensor, axis: int, out: torch.Tensor, parts: int = 1) -> None:
    """Sums of x along an axis into `out`, which has that axis with `parts` elements: one per chunk of the axis."""
    w = _walk(x, axis, out)
    config = rule(w, x.element_size())
    chunk = cdiv(cdiv(w.length, parts), config["BLOCK_N"]) * config["BLOCK_N"]
    grid = (*w.grid(config["ROWS"]), parts)
    launch(reduce_sum_kernel, grid, out, x, w.sizes, *w.strides, w.length, *w.steps, chunk, **config)


def _walk(x: torch.Tensor, axis: int, out: torch.Tensor) -> Walk:
    """`out` takes part with one row per row of x, and the step between its chunks."""
    w = walk(axis, out.narrow(axis, 0, 1).expand(x.shape), x)
    return Walk(w.sizes, w.strides, w.length, (out.stride(axis), w.steps[1]))


def parts(x: torch.Tensor, axis: int) -> int:
    """Chunks of the axis: as many as fill the GPU, as few as keep each worth its program."""
    length = x.shape[axis]
    rows = x.numel() // max(length, 1)
    if rows * CHUNK_BYTES > x.numel() * x.element_size():
        return 1
    w = _walk(x, axis, x)
    return clamp(PROGRAMS // w.grid(rule(w, x.element_size())["ROWS"])[0], 1, length * x.element_size() // CHUNK_BYTES)
