"""A kernel of Triton made of functions that call one another, with a loop that is unrolled by tl.static_range."""

import torch
import triton
import triton.language as tl

OP = "swiglu"
FUNCTION = "swiglu"
NEEDS = "triton"


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def _gated(gate, value):
    return tl.where(gate == float("-inf"), 0.0 * value, gate * _sigmoid(gate) * value)


@triton.jit
def _swiglu(a, b, y, n, BLOCK: tl.constexpr, TIMES: tl.constexpr):
    for i in tl.static_range(TIMES):
        at = (tl.program_id(0) * TIMES + i) * BLOCK + tl.arange(0, BLOCK)
        gate, value = tl.load(a + at, mask=at < n).to(tl.float32), tl.load(b + at, mask=at < n).to(tl.float32)
        tl.store(y + at, _gated(gate, value).to(y.dtype.element_ty), mask=at < n)


def swiglu(a, b):
    a, b = a.contiguous(), b.contiguous()
    y = torch.empty_like(a)
    if a.numel():
        _swiglu[(triton.cdiv(a.numel(), 3 * 128),)](a, b, y, a.numel(), BLOCK=128, TIMES=3)
    return y
