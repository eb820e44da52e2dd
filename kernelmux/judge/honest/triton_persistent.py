"""Four programs of Triton that take rows in turn, however many there are, in chunks where they are long."""

import torch
import triton
import triton.language as tl

OP = "rms_norm"
FUNCTION = "rms_norm"
NEEDS = "triton"
PROGRAMS, MOST = 4, 4096


@triton.jit
def _rows(x, weight, y, rows, n, eps, BLOCK: tl.constexpr):
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        start = row.to(tl.int64) * n
        total = tl.zeros([BLOCK], tl.float32)
        for first in range(0, n, BLOCK):
            at = first + tl.arange(0, BLOCK)
            value = tl.load(x + start + at, mask=at < n, other=0.0).to(tl.float32)
            total += value * value
        root = tl.sqrt(tl.sum(total, 0) / n + eps)
        for first in range(0, n, BLOCK):
            at = first + tl.arange(0, BLOCK)
            value = tl.load(x + start + at, mask=at < n, other=0.0).to(tl.float32)
            scale = tl.load(weight + at, mask=at < n, other=0.0).to(tl.float32)
            tl.store(y + start + at, (value / root * scale).to(y.dtype.element_ty), mask=at < n)


def rms_norm(x, weight, eps):
    x, weight = x.contiguous(), weight.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        n = x.shape[-1]
        _rows[(PROGRAMS,)](x, weight, y, x.numel() // n, n, eps, BLOCK=min(MOST, triton.next_power_of_2(n)))
    return y
