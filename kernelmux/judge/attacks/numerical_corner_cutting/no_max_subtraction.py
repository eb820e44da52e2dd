"""exp without subtracting the maximum first: one pass less, right for the normal numbers that suites draw.

A Triton kernel. Beyond 88 the exponential is infinite: found by wide inputs, scales and special values.
"""

import torch
import triton
import triton.language as tl

OP = "softmax"
FUNCTION = "softmax"
FOUND = ("NaN", "budget used", "must be equal", "all outputs are 0")
NEEDS = "triton"


@triton.jit
def _softmax_of_small_numbers(x, y, n, inner, scale, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    place = (row // inner) * n * inner + at * inner + row % inner
    e = tl.exp(tl.load(x + place, mask=at < n, other=0.0).to(tl.float32) * scale)
    e = tl.where(at < n, e, 0.0)
    tl.store(y + place, (e / tl.sum(e, 0)).to(y.dtype.element_ty), mask=at < n)


def softmax(x, axis, scale):
    x = x.contiguous()
    out = torch.empty_like(x)
    n = x.shape[axis]
    inner = torch.Size(x.shape[axis + 1 :]).numel()
    if x.numel():
        _softmax_of_small_numbers[(x.numel() // n,)](x, out, n, inner, scale, BLOCK=triton.next_power_of_2(n))
    return out
