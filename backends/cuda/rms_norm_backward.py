"""Gradients of RMS normalisation on CUDA.

two_pass   one kernel for the statistics of the rows, one that walks down the columns: reads grad_out and x twice
registers  a block keeps its row and its share of grad_weight in registers: one read
"""

import torch

from kernelmux.backends.cuda._reduce import sum_columns
from kernelmux.backends.cuda._rows import row_plan, row_width
from kernelmux.backends.cuda._runtime import Source, cdiv, ctype, multiprocessors
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost

SOURCE = Source(__file__)
REGISTERS = Source(__file__, "rms_norm_backward_registers.cu")
REGISTER_LIMIT = 8192  # elements: two rows, the weights and the fp32 sums share the registers of 1,024 threads
_BLOCK = 256
_COLUMN_BLOCK = 128
_ROW_CHUNK = 64  # rows per partial sum of grad_weight: 4 / 64 bytes of extra traffic per element
_THREADS_PER_MULTIPROCESSOR = 1024  # as many as find registers; each block costs a partial sum of n floats
_WARP_ROW_BYTES = 2048  # rows up to this length go to a single warp, several rows to a block


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
    plan = row_plan(n, x.element_size(), row_width((grad_out, x, weight, grad_x), n), _bytes_per_thread(n, x))
    grid = min(cdiv(rows, plan.rows), cdiv(_THREADS_PER_MULTIPROCESSOR, plan.group * plan.rows) * multiprocessors(x))
    partial = torch.empty((grid, n), dtype=torch.float32, device=x.device)
    kernel = REGISTERS.kernel(
        "rms_norm_backward_registers", "grad_out* x* weight* grad_x* partial* rows:i64 n:i32 eps:f32",
        ELEMENT=ctype(x.dtype), **plan.defines,
    )  # fmt: skip
    kernel(grid, plan.block, grad_out, x, weight, grad_x, partial, rows, n, eps)
    return grad_x, _grad_weight(partial, weight)


def _bytes_per_thread(n: int, x: torch.Tensor) -> int:
    return 64 if n * x.element_size() <= _WARP_ROW_BYTES else 32


def _grad_weight(partial: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    grad_weight = torch.empty_like(weight)
    sum_columns(partial, grad_weight, (1, *partial.shape))
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
}  # fmt: skip
