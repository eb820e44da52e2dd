"""RMS normalisation on CUDA.

H200, 32768 x 16384 bf16 (a copy of as many bytes takes 510 us):

naive      674 us  a block per row reads it twice, one element per access
two_pass   524 us  16 bytes per access; the second read comes from L2
registers  508 us  the row stays in registers: one read, one write
"""

from functools import lru_cache

import torch

from kernelmux.backends.cuda._rows import REGISTER_LIMIT, loop_over_row, row_plan, row_width
from kernelmux.backends.cuda._runtime import Bound, Source, cdiv, ctype
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost

SOURCE = Source(__file__)
REGISTERS = Source(__file__, "rms_norm_registers.cu")
_NAIVE_BLOCK = 512


def rms_norm_naive(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _by_blocks("rms_norm_naive", 1, _NAIVE_BLOCK, x, weight, eps)


def rms_norm_two_pass(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    n = weight.numel()
    width = row_width((x, weight), n)
    block, unroll = loop_over_row(cdiv(n, width))
    return _by_blocks("rms_norm_two_pass", width, block, x, weight, eps, UNROLL=unroll)


def _by_blocks(
    entry: str, width: int, block: int, x: torch.Tensor, weight: torch.Tensor, eps: float, **defines: int
) -> torch.Tensor:
    """A block per row."""
    y, n = torch.empty_like(x), weight.numel()
    fixed = {"ELEMENT": ctype(x.dtype), "GROUP": block, "WIDTH": width}
    kernel = SOURCE.kernel(entry, "x* weight* y* n:i32 eps:f32", **fixed, **defines)
    if y.numel():
        kernel(x.numel() // n, block, x, weight, y, n, eps)
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
