"""Gradients of RMS normalisation on CUDA.

H200, 16384 x 8192 bf16 (a copy of as many bytes takes 192 us):

two_pass   365 us  statistics of the rows first, then down the columns: reads grad_out and x twice
registers  288 us  a block keeps its row and its share of grad_weight in registers: one read
pipelined  210 us  the next row arrives in shared memory while a block works on this one
"""

from collections.abc import Callable
from functools import lru_cache

import torch

from kernelmux.backends.cuda._reduce import sum_partial
from kernelmux.backends.cuda._rows import RowPlan, row_plan, row_width
from kernelmux.backends.cuda._runtime import Bound, Source, cdiv, ctype, multiprocessors
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost

SOURCE = Source(__file__)
REGISTERS = Source(__file__, "rms_norm_backward_registers.cu")
PIPELINED = Source(__file__, "rms_norm_backward_pipelined.cu")
REGISTER_LIMIT = 8192  # elements: two rows, the weights and the fp32 sums share the registers of 1,024 threads
_BLOCK = 256
_COLUMN_BLOCK = 128
_ROW_CHUNK = 64  # rows per partial sum of grad_weight: 4 / 64 bytes of extra traffic per element
_MOST_CHUNKS = 65535  # blocks in grid.y
_LEAST_ROWS = 8  # per block
# Per multiprocessor, and rows in the ring (H200, 16384 x 8192 bf16: 210 us; with 1,024 threads and three rows 227).
_THREADS, _STAGES = 512, 2
_SIGNATURE = "grad_out* x* weight* grad_x* partial* rows:i64 n:i32 eps:f32"


def rms_norm_backward_two_pass(
    grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    n, grad_x = weight.numel(), torch.empty_like(x)
    rows = x.numel() // n if n else 0
    width = row_width((grad_out, x, weight, grad_x), n) if n else 1
    stats = torch.empty((rows, 2), dtype=torch.float32, device=x.device)
    chunk = max(_ROW_CHUNK, cdiv(rows, _MOST_CHUNKS))
    partial = torch.empty((cdiv(rows, chunk), n), dtype=torch.float32, device=x.device)
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
        kernel(grid, _COLUMN_BLOCK, grad_out, x, weight, stats, grad_x, partial, rows, n, chunk)
    return grad_x, _grad_weight(partial, weight)


def rms_norm_backward_registers(
    grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return _by_blocks_that_stay(_registers, grad_out, x, weight, eps)


def rms_norm_backward_pipelined(
    grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return _by_blocks_that_stay(_pipelined, grad_out, x, weight, eps)


def _by_blocks_that_stay(
    plan: Callable[..., tuple[Bound, int]], grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """`plan` gives the launch and the number of its blocks, each of which leaves a partial sum of grad_weight."""
    n, grad_x = weight.numel(), torch.empty_like(x)
    rows = x.numel() // n if n else 0
    if not rows:
        return grad_x, torch.zeros_like(weight)
    launch, blocks = plan(rows, n, x.dtype, row_width((grad_out, x, weight), n), eps, multiprocessors(x))
    partial = torch.empty((blocks, n), dtype=torch.float32, device=x.device)
    launch(grad_out, x, weight, grad_x, partial)
    return grad_x, _grad_weight(partial, weight)


@lru_cache(maxsize=4096)
def _registers(rows: int, n: int, dtype: torch.dtype, width: int, eps: float, processors: int) -> tuple[Bound, int]:
    plan = row_plan(n, dtype.itemsize, width, bytes_per_thread=32)
    grid = _grid(rows, plan, plan.blocks * processors)
    kernel = REGISTERS.kernel("rms_norm_backward_registers", _SIGNATURE, ELEMENT=ctype(dtype), **plan.defines)
    return kernel.bind(grid, plan.block, rows, n, eps), grid


@lru_cache(maxsize=4096)
def _pipelined(rows: int, n: int, dtype: torch.dtype, width: int, eps: float, processors: int) -> tuple[Bound, int]:
    plan = row_plan(n, dtype.itemsize, width, bytes_per_thread=32)
    blocks = max(1, _THREADS // plan.threads)
    grid = _grid(rows, plan, blocks * processors)
    options = {**plan.defines, "MIN_BLOCKS": blocks, "STAGES": _STAGES}
    kernel = PIPELINED.kernel("rms_norm_backward_pipelined", _SIGNATURE, ELEMENT=ctype(dtype), **options)
    ring = 2 * _STAGES * plan.vectors * plan.threads * plan.width * dtype.itemsize  # bytes
    return kernel.bind(grid, plan.block, rows, n, eps, shared=ring), grid


def _grid(rows: int, plan: RowPlan, most: int) -> int:
    """Blocks that stay: each has at least 8 rows to spread the cost of its partial sum of grad_weight over."""
    return min(cdiv(rows, _LEAST_ROWS * plan.rows), most)


def _grad_weight(partial: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    grad_weight = torch.empty_like(weight)
    sum_partial(partial, grad_weight)
    return grad_weight


_LAYOUT = {"grad_out": "contiguous", "x": "contiguous", "weight": "contiguous"}
# grad_weight: a block adds up its rows one after the other (1.06 of the bound for 130 equal rows otherwise, on an H200)
_CHAIN = "fp32_sequential"
_SHORT = (AtMost("N", REGISTER_LIMIT),)
VARIANTS = {
    "two_pass": Implementation(
        rms_norm_backward_two_pass, "statistics of the rows first, then down the columns", (), _LAYOUT, _CHAIN
    ),
    "registers": Implementation(
        rms_norm_backward_registers, "one read: rows and partial grad_weight in registers", _SHORT, _LAYOUT, _CHAIN
    ),
    "pipelined": Implementation(
        rms_norm_backward_pipelined, "the next rows arrive in shared memory meanwhile", _SHORT, _LAYOUT, _CHAIN
    ),
}
