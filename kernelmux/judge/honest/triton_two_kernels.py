"""Two kernels of Triton in a row: one writes the mean and the scale of each row, the other normalises."""

import torch
import triton
import triton.language as tl

OP = "layer_norm"
FUNCTION = "layer_norm"
NEEDS = "triton"


@triton.jit
def _statistics(x, mean, inverse, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        total += tl.load(x + row * n + at, mask=at < n, other=0.0).to(tl.float32)
    middle = tl.sum(total, 0) / n
    squares = tl.zeros([BLOCK], tl.float32)
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(x + row * n + at, mask=at < n, other=0.0).to(tl.float32)
        centred = tl.where(at < n, value - middle, 0.0)
        squares += centred * centred
    tl.store(mean + row, middle)
    tl.store(inverse + row, 1 / tl.sqrt(tl.sum(squares, 0) / n + eps))


@triton.jit
def _normalised(x, weight, bias, y, mean, inverse, n, BLOCK: tl.constexpr, BIAS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + row * n + at, mask=at < n).to(tl.float32) - tl.load(mean + row)
    value = value * tl.load(inverse + row) * tl.load(weight + at, mask=at < n).to(tl.float32)
    if BIAS:
        value += tl.load(bias + at, mask=at < n).to(tl.float32)
    tl.store(y + row * n + at, value.to(y.dtype.element_ty), mask=at < n)


def layer_norm(x, weight, bias, eps):
    x, weight = x.contiguous(), weight.contiguous()
    y = torch.empty_like(x)
    if not x.numel():
        return y
    n = x.shape[-1]
    rows = x.numel() // n
    mean, inverse = torch.empty(2, rows, dtype=torch.float32, device=x.device)
    _statistics[(rows,)](x, mean, inverse, n, eps, BLOCK=min(4096, triton.next_power_of_2(n)))
    given = x if bias is None else bias.contiguous()
    _normalised[(rows, triton.cdiv(n, 64))](x, weight, given, y, mean, inverse, n, BLOCK=64, BIAS=bias is not None)
    return y
