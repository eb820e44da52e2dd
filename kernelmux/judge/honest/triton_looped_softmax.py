"""Softmax in Triton along any axis, in three loops over blocks of 64, compiled without fusing products into sums."""

import torch
import triton
import triton.language as tl

OP = "softmax"
FUNCTION = "softmax"
NEEDS = "triton"


@triton.jit
def _softmax(x, y, n, inner, scale, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    begin = (row // inner) * n * inner + row % inner
    at = tl.arange(0, BLOCK).to(tl.int64)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, n, BLOCK):
        z = tl.load(x + begin + (start + at) * inner, mask=start + at < n, other=float("nan")).to(tl.float32) * scale
        z = tl.where(start + at < n, z, float("-inf"))
        top = tl.maximum(top, z, propagate_nan=tl.PropagateNan.ALL)
    highest = tl.max(tl.where(top != top, float("-inf"), top), 0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        z = tl.load(x + begin + (start + at) * inner, mask=start + at < n, other=0.0).to(tl.float32) * scale
        total += tl.where(start + at < n, tl.exp(z - highest), 0.0)
    whole = tl.sum(total, 0)
    for start in range(0, n, BLOCK):
        place = begin + (start + at) * inner
        z = tl.load(x + place, mask=start + at < n, other=0.0).to(tl.float32) * scale
        tl.store(y + place, (tl.exp(z - highest) / whole).to(y.dtype.element_ty), mask=start + at < n)


def softmax(x, axis, scale):
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        n = x.shape[axis]
        _softmax[(x.numel() // n,)](
            x, y, n, torch.Size(x.shape[axis + 1 :]).numel(), scale, BLOCK=64, enable_fp_fusion=False
        )
    return y
