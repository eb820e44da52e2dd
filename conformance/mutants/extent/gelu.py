"""gelu in Triton, with rows in grid.y."""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from kernelmux import emulator
from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.backend import Implementation


@triton.jit
def _gelu_kernel(y, x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = tl.program_id(1).to(tl.int64) * n + i
    v = tl.load(x + at, mask=i < n, other=0.0).to(tl.float32)
    tl.store(y + at, 0.5 * v * libdevice.erfc(-v * 0.7071067811865476), mask=i < n)


def grid_y(x: torch.Tensor, approximate: str) -> torch.Tensor:
    if approximate == "tanh" or x.dim() < 2 or not x.numel():
        result: torch.Tensor = sound("gelu", x, approximate)
        return result
    y, rows = torch.empty_like(x), len(x)
    n = x.numel() // rows
    if x.is_cuda:
        _gelu_kernel[(-(-n // 128), rows)](y, x, n, BLOCK=128)
        return y
    with emulator.triton_active():
        _gelu_kernel[(-(-n // 128), rows)](y, x, n, BLOCK=128)
    return y


VARIANTS = {"grid_y": Implementation(fn=grid_y, idea="rows in grid.y", layout={"x": "contiguous"})}

CAUGHT_BY = {"grid_y": "extent"}
