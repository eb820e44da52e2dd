"""Sums of rows by several blocks."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl

from kernelmux.conformance.mutants import _triton
from kernelmux.conformance.mutants._cuda import launch
from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.backend import Implementation

SOURCE = Path(__file__).with_name("sums.cu")
BLOCK = 256
ORDERS = torch.Generator().manual_seed(0)
Totals = Callable[[torch.Tensor], torch.Tensor]


def _sums(totals: Totals) -> Callable[[torch.Tensor, int | None, bool], torch.Tensor]:
    """An operator from a function that sums the rows of a matrix, [rows, n] -> [rows] in fp32."""

    def reduce_sum(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
        shape = [1 if axis in (None, i) else n for i, n in enumerate(x.shape) if keepdim or axis not in (None, i)]
        if not x.numel():
            return torch.zeros(shape, dtype=x.dtype, device=x.device)
        rows = x.reshape(1, -1) if axis is None else x.movedim(axis, -1).reshape(-1, x.shape[axis])
        return torch.empty(shape, dtype=x.dtype, device=x.device).copy_(totals(rows.contiguous()).view(shape))

    return reduce_sum


def _in_pieces(totals: Totals) -> Totals:
    """At most 65,535 rows in one launch."""
    return lambda rows: torch.cat([totals(piece) for piece in rows.split(65535)])


def _atomics(entry: str, dtype: torch.dtype) -> Totals:
    def totals(rows: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(len(rows), device=rows.device, dtype=dtype)
        grid = (-(-rows.shape[1] // BLOCK), len(rows))
        launch(SOURCE, entry, grid, BLOCK, (rows, total, np.int32(rows.shape[1])), rows.dtype)
        return total

    return totals


def _last_adds(entry: str) -> Totals:
    def totals(rows: torch.Tensor) -> torch.Tensor:
        grid = (-(-rows.shape[1] // BLOCK), len(rows))
        parts = torch.zeros(len(rows), grid[0], device=rows.device, dtype=torch.float32)
        arrived = torch.zeros(len(rows), 2, dtype=torch.int32, device=rows.device)
        total = torch.empty(len(rows), device=rows.device, dtype=torch.float32)
        launch(SOURCE, entry, grid, BLOCK, (rows, parts, arrived, total, np.int32(rows.shape[1])), rows.dtype)
        return total

    return totals


@triton.jit
def _sum_kernel(x, total, n, blocks, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    row, i = program // blocks, program % blocks * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + row.to(tl.int64) * n + i, mask=i < n, other=0.0).to(tl.float32)
    tl.atomic_add(total + row, tl.sum(v))


def _triton_atomics(rows: torch.Tensor) -> torch.Tensor:
    total, blocks = torch.zeros(len(rows), device=rows.device, dtype=torch.float32), -(-rows.shape[1] // BLOCK)
    _triton.launch(_sum_kernel, blocks * len(rows), rows, total, rows.shape[1], blocks, BLOCK=BLOCK)
    return total


def long_columns(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """The parts of long columns of a matrix are added in an order by chance; rows are not."""
    if x.dim() != 2 or axis != 0 or len(x) < 1024:
        result: torch.Tensor = sound("reduce_sum", x, axis, keepdim)
        return result
    parts = [part.sum(0) for part in x.float().split(64)]
    total = torch.zeros(x.shape[1], device=x.device, dtype=torch.float32)
    for i in torch.randperm(len(parts), generator=ORDERS).tolist():
        total += parts[i]
    return torch.empty(total.shape, dtype=x.dtype, device=x.device).copy_(total).view([1] * keepdim + [-1])


VARIANTS = {
    "long_columns": Implementation(fn=long_columns, idea="parts of long columns come in an order by chance"),
    "atomics": Implementation(
        fn=_sums(_in_pieces(_atomics("sum_atomics", torch.float32))), idea="blocks add to the total as they come"
    ),
    "atomics_declared": Implementation(
        fn=_sums(_in_pieces(_atomics("sum_atomics_wide", torch.float64))),
        idea="blocks add in fp64 as they come, and this is declared",
        deterministic=False,
    ),
    "arrival": Implementation(
        fn=_sums(_in_pieces(_last_adds("sum_arrival"))), idea="the last block adds the parts as they arrived"
    ),
    "ordered": Implementation(
        fn=_sums(_in_pieces(_last_adds("sum_ordered"))), idea="the last block to arrive adds the parts by number"
    ),
    "triton_atomics": Implementation(fn=_sums(_triton_atomics), idea="programs add to the total as they come"),
}

CAUGHT_BY = {
    "long_columns": "repeatability",
    "atomics": "repeatability",
    "arrival": "repeatability",
    "triton_atomics": "repeatability",
}
