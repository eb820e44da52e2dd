"""Triton with @autotune over three configurations, timed at the first call of a size; by a lock one thread at a time."""

import threading

import torch
import triton
import triton.language as tl

OP = "silu"
FUNCTION = "silu"
NEEDS = "triton"
_turn = threading.Lock()


@triton.autotune([triton.Config({"BLOCK": b}, num_warps=w) for b, w in ((64, 1), (256, 2), (1024, 4))], key=["n"])
@triton.jit
def _silu(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n).to(tl.float32)
    weight = tl.where(value == float("-inf"), 0.0, value / (1 + tl.exp(-value)))
    tl.store(y + at, weight.to(y.dtype.element_ty), mask=at < n)


def silu(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        with _turn:
            _silu[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
    return y
