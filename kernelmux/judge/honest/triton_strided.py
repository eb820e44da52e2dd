"""Triton with strides as arguments: tiles are read where they lie, without a copy."""

import torch
import triton
import triton.language as tl

OP = "transpose"
FUNCTION = "transpose"
NEEDS = "triton"


@triton.jit
def _tile(x, y, m, n, sm, sn, BLOCK: tl.constexpr):
    columns = tl.cdiv(n, BLOCK)  # one axis for all tiles: the others end at 65,535
    i = (tl.program_id(0) // columns).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    j = (tl.program_id(0) % columns).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = (i[:, None] < m) & (j[None, :] < n)
    value = tl.load(x + i[:, None] * sm + j[None, :] * sn, mask=inside)
    tl.store(y + j[:, None] * m + i[None, :], tl.trans(value), mask=tl.trans(inside))


def transpose(x):
    m, n = x.shape
    y = torch.empty(n, m, dtype=x.dtype, device=x.device)
    if y.numel():
        _tile[(triton.cdiv(m, 32) * triton.cdiv(n, 32),)](x, y, m, n, *x.stride(), BLOCK=32)
    return y
