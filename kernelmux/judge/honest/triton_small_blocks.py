"""Triton with blocks of 32 elements and one warp: far too small to be fast, and right."""

import torch
import triton
import triton.language as tl

OP = "add"
FUNCTION = "add"
NEEDS = "triton"


@triton.jit
def _add(x, y, z, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(x + at, mask=at < n).to(tl.float32) + tl.load(y + at, mask=at < n).to(tl.float32)
    tl.store(z + at, total.to(z.dtype.element_ty), mask=at < n)


def add(x, y):
    x, y = x.contiguous(), y.contiguous()
    z = torch.empty_like(x)
    if x.numel():
        _add[(triton.cdiv(x.numel(), 32),)](x, y, z, x.numel(), BLOCK=32, num_warps=1)
    return z
