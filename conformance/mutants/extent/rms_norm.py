"""rms_norm in Triton, with the offset of a row in 32 bits."""

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from kernelmux.conformance.mutants import _triton
from kernelmux.registry.backend import Implementation


@triton.jit
def _rms_norm_kernel(y, x, weight, n, eps, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    row = tl.program_id(0)
    if WIDE:
        row = row.to(tl.int64)
    start = row * n
    squares = tl.zeros([BLOCK], tl.float64)
    for first in range(0, n, BLOCK):
        i = first + tl.arange(0, BLOCK)
        v = tl.load(x + start + i, mask=i < n, other=0.0).to(tl.float32)
        squares += v.to(tl.float64) * v.to(tl.float64)
    factor = 1 / tl.sqrt(tl.sum(squares) / n + eps)
    for first in range(0, n, BLOCK):
        i = first + tl.arange(0, BLOCK)
        v = tl.load(x + start + i, mask=i < n, other=0.0).to(tl.float32)
        tl.store(y + start + i, v * factor * tl.load(weight + i, mask=i < n, other=0.0), mask=i < n)


def _rms_norm(wide: bool) -> Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]:
    def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        y, n = torch.empty(x.shape, dtype=x.dtype, device=x.device), x.shape[-1]
        if x.numel():
            _triton.launch(_rms_norm_kernel, x.numel() // n, y, x, weight, n, eps, BLOCK=128, WIDE=wide)
        return y

    return rms_norm


PACKED = {"x": "contiguous", "weight": "contiguous"}
VARIANTS = {
    "int_rows": Implementation(fn=_rms_norm(False), idea="program_id * n in 32 bits", layout=PACKED),
    "wide_rows": Implementation(fn=_rms_norm(True), idea="program_id in 64 bits", layout=PACKED),
}

CAUGHT_BY = {"int_rows": "offsets"}
