"""RMS normalisation on CUDA.

naive      a block per row reads it twice, one element per access
two_pass   16 bytes per access; the second read comes from L2
registers  the row stays in registers: one read, one write
"""

from functools import lru_cache

import torch

from kernelmux.backends.cuda._rows import REGISTER_LIMIT, row_plan, row_width
from kernelmux.backends.cuda._runtime import Bound, Source, cdiv, ctype
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost

SOURCE = Source(__file__)
REGISTERS = Source(__file__, "rms_norm_registers.cu")
_LONG_ROW_BLOCK = 512


def rms_norm_naive(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _row_per_block("rms_norm_naive", 1, x, weight, eps)


def rms_norm_two_pass(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _row_per_block("rms_norm_two_pass", row_width((x, weight), weight.numel()), x, weight, eps)


def _row_per_block(entry: str, width: int, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    y, n = torch.empty_like(x), weight.numel()
    kernel = SOURCE.kernel(
        entry, "x* weight* y* n:i32 eps:f32", ELEMENT=ctype(x.dtype), GROUP=_LONG_ROW_BLOCK, WIDTH=width
    )
    if y.numel():
        kernel(x.numel() // n, _LONG_ROW_BLOCK, x, weight, y, n, eps)
    return y


def rms_norm_registers(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    y, n = torch.empty_like(x), weight.numel()
    if y.numel():
        _registers(y.numel() // n, n, x.dtype, row_width((x, weight), n), eps)(x, weight, y)
    return y


@lru_cache(maxsize=4096)
def _registers(rows: int, n: int, dtype: torch.dtype, width: int, eps: float) -> Bound:
    plan = row_plan(n, dtype.itemsize, width)
    kernel = REGISTERS.kernel(
        "rms_norm_registers", "x* weight* y* rows:i64 n:i32 eps:f32", ELEMENT=ctype(dtype), **plan.defines
    )
    return kernel.bind(cdiv(rows, plan.rows), plan.block, rows, n, eps)


_LAYOUT = {"x": "contiguous", "weight": "contiguous"}
VARIANTS = {
    "naive": Implementation(rms_norm_naive, "two passes, one element per access", layout=_LAYOUT),
    "two_pass": Implementation(rms_norm_two_pass, "16 bytes per access, second read from L2", layout=_LAYOUT),
    "registers": Implementation(
        rms_norm_registers,
        "one read: the row stays in registers",
        layout=_LAYOUT,
        requires=(AtMost("N", REGISTER_LIMIT),),
    ),
}
