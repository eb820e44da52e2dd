"""Triton with strides of any sign of life as arguments: rows along any axis, read where they lie, without a copy."""

import torch
import triton
import triton.language as tl

OP = "transpose"
FUNCTION = "transpose"
NEEDS = "triton"


@triton.jit
def _tile(x, y, m, n, sm, sn, BLOCK: tl.constexpr):
    i = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    j = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    inside = (i[:, None] < m) & (j[None, :] < n)
    value = tl.load(x + i[:, None] * sm + j[None, :] * sn, mask=inside)
    tl.store(y + j[:, None] * m + i[None, :], tl.trans(value), mask=tl.trans(inside))


def transpose(x):
    m, n = x.shape
    y = torch.empty(n, m, dtype=x.dtype, device=x.device)
    if y.numel():
        _tile[(triton.cdiv(m, 32), triton.cdiv(n, 32))](x, y, m, n, *x.stride(), BLOCK=32)
    return y
