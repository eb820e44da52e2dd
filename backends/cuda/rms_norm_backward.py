"""Gradients of RMS normalisation on CUDA.

two_pass   one kernel for the statistics of the rows, one that walks down the columns: reads grad_out and x twice
registers  a block keeps its row and its share of grad_weight in registers: one read
pipelined  the next rows arrive in shared memory while a block works on this one
"""

import torch

from kernelmux.backends.cuda._reduce import sum_columns
from kernelmux.backends.cuda._rows import RowPlan, row_plan, row_width
from kernelmux.backends.cuda._runtime import Source, cdiv, ctype, multiprocessors
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost

SOURCE = Source(__file__)
REGISTERS = Source(__file__, "rms_norm_backward_registers.cu")
PIPELINED = Source(__file__, "rms_norm_backward_pipelined.cu")
REGISTER_LIMIT = 8192  # elements: two rows, the weights and the fp32 sums share the registers of 1,024 threads
_BLOCK = 256
_COLUMN_BLOCK = 128
_ROW_CHUNK = 64  # rows per partial sum of grad_weight: 4 / 64 bytes of extra traffic per element
_TILE_INNER = 8  # grad_weight: few threads side by side, since the partial sums are many and n is short
_LEAST_ROWS = 8  # per block
_RING_BYTES = 96 * 1024  # per block: two blocks per multiprocessor from sm_90 on
_SIGNATURE = "grad_out* x* weight* grad_x* partial* rows:i64 n:i32 eps:f32"


def rms_norm_backward_two_pass(
    grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    n, grad_x = weight.numel(), torch.empty_like(x)
    rows = x.numel() // n if n else 0
    width = row_width((grad_out, x, weight, grad_x), n) if n else 1
    stats = torch.empty((rows, 2), dtype=torch.float32, device=x.device)
    partial = torch.empty((cdiv(rows, _ROW_CHUNK), n), dtype=torch.float32, device=x.device)
    if partial.numel():
        shared = {"ELEMENT": ctype(x.dtype), "WIDTH": width}
        kernel = SOURCE.kernel(
            "rms_norm_backward_stats", "grad_out* x* weight* stats* n:i32 eps:f32", **shared, GROUP=_BLOCK
        )
        kernel(rows, _BLOCK, grad_out, x, weight, stats, n, eps)
        kernel = SOURCE.kernel(
            "rms_norm_backward_columns", "grad_out* x* weight* stats* grad_x* partial* rows:i64 n:i32 chunk:i32",
            **shared, GROUP=_COLUMN_BLOCK,
        )  # fmt: skip
        grid = (cdiv(n, _COLUMN_BLOCK * width), partial.shape[0])
        kernel(grid, _COLUMN_BLOCK, grad_out, x, weight, stats, grad_x, partial, rows, n, _ROW_CHUNK)
    return grad_x, _grad_weight(partial, weight)


def rms_norm_backward_registers(
    grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    n, grad_x = weight.numel(), torch.empty_like(x)
    rows = x.numel() // n if n else 0
    if not rows:
        return grad_x, torch.zeros_like(weight)
    plan = _plan(grad_out, x, weight, grad_x)
    grid = _grid(rows, plan, plan.blocks, x)
    partial = torch.empty((grid, n), dtype=torch.float32, device=x.device)
    kernel = REGISTERS.kernel("rms_norm_backward_registers", _SIGNATURE, ELEMENT=ctype(x.dtype), **plan.defines)
    kernel(grid, plan.block, grad_out, x, weight, grad_x, partial, rows, n, eps)
    return grad_x, _grad_weight(partial, weight)


def rms_norm_backward_pipelined(
    grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    n, grad_x = weight.numel(), torch.empty_like(x)
    rows = x.numel() // n if n else 0
    if not rows:
        return grad_x, torch.zeros_like(weight)
    plan = _plan(grad_out, x, weight, grad_x)
    stage = 2 * plan.vectors * plan.threads * plan.width * x.element_size()  # bytes
    stages = 3 if 3 * stage <= _RING_BYTES else 2
    blocks = max(1, min(plan.blocks, 2 * _RING_BYTES // (stages * stage)))
    grid = _grid(rows, plan, blocks, x)
    partial = torch.empty((grid, n), dtype=torch.float32, device=x.device)
    options = {**plan.defines, "MIN_BLOCKS": blocks, "STAGES": stages}
    kernel = PIPELINED.kernel("rms_norm_backward_pipelined", _SIGNATURE, ELEMENT=ctype(x.dtype), **options)
    kernel(grid, plan.block, grad_out, x, weight, grad_x, partial, rows, n, eps, shared=stages * stage)
    return grad_x, _grad_weight(partial, weight)


def _plan(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, grad_x: torch.Tensor) -> RowPlan:
    n, size = weight.numel(), x.element_size()
    return row_plan(n, size, row_width((grad_out, x, weight, grad_x), n), bytes_per_thread=32)


def _grid(rows: int, plan: RowPlan, blocks: int, x: torch.Tensor) -> int:
    """Blocks that stay: each has at least 8 rows to spread the cost of its partial sum of grad_weight over."""
    return min(cdiv(rows, _LEAST_ROWS * plan.rows), blocks * multiprocessors(x))


def _grad_weight(partial: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    grad_weight = torch.empty_like(weight)
    sum_columns(partial, grad_weight, (1, *partial.shape), _TILE_INNER)
    return grad_weight


_LAYOUT = {"grad_out": "contiguous", "x": "contiguous", "weight": "contiguous"}
VARIANTS = {
    "two_pass": Implementation(
        rms_norm_backward_two_pass, "statistics of the rows first, then down the columns", layout=_LAYOUT
    ),
    "registers": Implementation(
        rms_norm_backward_registers, "one read: rows and partial grad_weight in registers", layout=_LAYOUT,
        requires=(AtMost("N", REGISTER_LIMIT),),
    ),
    "pipelined": Implementation(
        rms_norm_backward_pipelined, "the next rows arrive in shared memory meanwhile", layout=_LAYOUT,
        requires=(AtMost("N", REGISTER_LIMIT),),
    ),
}  # fmt: skip
