"""Keeps the compiled kernel and its grid for each size in a dictionary: a cache of code, and of no result."""

import torch
import triton
import triton.language as tl

OP = "square"
FUNCTION = "square"
NEEDS = "triton"
_launchers = {}


@triton.jit
def _square(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n).to(tl.float32)
    tl.store(y + at, (value * value).to(y.dtype.element_ty), mask=at < n)


def _launcher(n):
    if n not in _launchers:
        block = min(max(triton.next_power_of_2(n // 8), 32), 512)
        _launchers[n] = (_square[(triton.cdiv(n, block),)], block)
    return _launchers[n]


def square(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        launch, block = _launcher(x.numel())
        launch(x, y, x.numel(), BLOCK=block)
    return y
