"""The sum is kept in fp16, in which 2,049 ones are 2,048: fast on tensor cores, and inside of many tolerances.

A Triton kernel. Found by the bound, which grows with the number of terms in fp32.
"""

import torch
import triton
import triton.language as tl

OP = "reduce_sum"
FUNCTION = "reduce_sum"
FOUND = ("budget used", "must be equal")
NEEDS = "triton"


@triton.jit
def _sum_in_half(x, y, n, inner, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float16)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        place = (row // inner) * n * inner + at * inner + row % inner
        total += tl.load(x + place, mask=at < n, other=0.0).to(tl.float16)
    tl.store(y + row, tl.sum(total, 0).to(y.dtype.element_ty))


def reduce_sum(x, axis, keepdim):
    x = x.contiguous()
    shape = list(x.shape)
    n = x.numel() if axis is None else shape[axis]
    inner = 1 if axis is None else torch.Size(shape[axis + 1 :]).numel()
    kept = [1 if axis is None or i == axis else s for i, s in enumerate(shape)]
    final = kept if keepdim else [] if axis is None else shape[:axis] + shape[axis + 1 :]
    out = torch.empty(final, dtype=x.dtype, device=x.device)
    if out.numel():
        _sum_in_half[(out.numel(),)](x, out, n, inner, BLOCK=128)
    return out
