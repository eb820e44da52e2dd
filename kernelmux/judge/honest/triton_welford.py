"""Layer normalisation with Welford's update, put together by tl.reduce with a function of its own."""

import torch
import triton
import triton.language as tl

OP = "layer_norm"
FUNCTION = "layer_norm"
NEEDS = "triton"


@triton.jit
def _joined(mean, spread, count, mean_2, spread_2, count_2):
    both = count + count_2
    share = tl.where(both > 0, count_2 / tl.maximum(both, 1.0), 0.0)
    apart = mean_2 - mean
    return mean + apart * share, spread + spread_2 + apart * apart * count * share, both


@triton.jit
def _welford(x, weight, bias, y, n, eps, BLOCK: tl.constexpr, BIAS: tl.constexpr):
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    value = tl.load(x + row * n + at, mask=at < n, other=0.0).to(tl.float32)
    ones = tl.where(at < n, 1.0, 0.0)
    mean, spread, _ = tl.reduce((value, tl.zeros_like(value), ones), 0, _joined)
    result = (value - mean) / tl.sqrt(spread / n + eps) * tl.load(weight + at, mask=at < n, other=0.0).to(tl.float32)
    if BIAS:
        result += tl.load(bias + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(y + row * n + at, result.to(y.dtype.element_ty), mask=at < n)


def layer_norm(x, weight, bias, eps):
    x, weight = x.contiguous(), weight.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        n = x.shape[-1]
        given = x if bias is None else bias.contiguous()
        block = triton.next_power_of_2(n)
        _welford[(x.numel() // n,)](x, weight, given, y, n, eps, BLOCK=block, BIAS=bias is not None)
    return y
