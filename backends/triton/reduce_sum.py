"""reduce_sum: the sum along one axis or of everything, accumulated in fp32, rounded once.

rows   one program per tile of rows walks the whole axis
split  an axis with too few rows to fill the GPU is cut into chunks, summed to fp32, then summed again: no atomics, so
       the bits do not depend on which chunk ends first
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch import cdiv, launch
from kernelmux.backends.triton._rows import Walk, clamp, neighbours, next_power, row_offsets, walk
from kernelmux.backends.triton._strides import collapse
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


def sum_along(x: torch.Tensor, axis: int, out: torch.Tensor) -> None:
    """Sums of x along an axis into `out`, whose extent there is the number of equal chunks to cut the axis into."""
    parts = out.shape[axis]
    w = walk(axis, out.narrow(axis, 0, 1).expand(x.shape), x)
    config = rule(w, x.element_size())
    chunk = cdiv(cdiv(w.length, parts), config["BLOCK_N"]) * config["BLOCK_N"]
    grid = (*w.grid(config["ROWS"]), parts)
    launch(
        reduce_sum_kernel, grid, out, x, w.sizes, *w.strides, w.length, out.stride(axis), w.steps[1], chunk, **config
    )  # fmt: skip


def split_along(x: torch.Tensor, axis: int, out: torch.Tensor) -> None:
    """sum_along, by way of fp32 sums of as many chunks as fill the GPU and are worth a program each."""
    length, itemsize = x.shape[axis], x.element_size()
    programs = x.numel() * itemsize // CHUNK_BYTES
    parts = min(programs, PROGRAMS) // max(out.numel(), 1)
    if parts <= 1 or length * itemsize < 2 * CHUNK_BYTES:
        sum_along(x, axis, out)
        return
    sums = torch.empty(_with(x.shape, axis, parts), dtype=torch.float32, device=x.device)
    sum_along(x, axis, sums)
    sum_along(sums, axis, out)


def _with(shape: torch.Size, axis: int, extent: int) -> list[int]:
    return [*shape[:axis], extent, *shape[axis + 1 :]]


def _line(x: torch.Tensor, along: Any) -> torch.Tensor:
    """Everything that is to be added as one dimension: a view, or where none exists, fp32 sums over the last one."""
    if x.numel() == 0:
        return x.as_strided((0,), (1,))
    sizes, (strides,) = collapse(x.shape, x.stride())
    if len(sizes) == 1:
        return x.as_strided(sizes, strides)
    sums = torch.empty(_with(x.shape, x.ndim - 1, 1), dtype=torch.float32, device=x.device)
    along(x, x.ndim - 1, sums)
    return _line(sums, along)


def _reduce(along: Any, x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    kept = [1] * x.ndim if axis is None else _with(x.shape, axis, 1)
    out = torch.empty(kept, dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out if keepdim or axis is None else out.squeeze(axis)
    if axis is None:
        along(_line(x, along), 0, out.view(1))
        return out if keepdim else out.view(())
    along(x, axis, out)
    return out if keepdim else out.squeeze(axis)


VARIANTS = {
    "rows": Implementation(fn=partial(_reduce, sum_along), idea="one program walks the axis for a tile of rows"),
    "split": Implementation(fn=partial(_reduce, split_along), idea="long axes in chunks, then the chunks: no atomics"),
}
