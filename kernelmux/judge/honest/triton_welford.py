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
    row, lane = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    mean, spread, count = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        at = start + lane
        value = tl.load(x + row * n + at, mask=at < n, other=0.0).to(tl.float32)
        one = tl.where(at < n, 1.0, 0.0)
        mean, spread, count = _joined(mean, spread, count, value, tl.zeros_like(value), one)
    mean, spread, _ = tl.reduce((mean, spread, count), 0, _joined)
    scale = 1.0 / tl.sqrt(spread / n + eps)
    for start in range(0, n, BLOCK):
        at = start + lane
        value = tl.load(x + row * n + at, mask=at < n, other=0.0).to(tl.float32)
        result = (value - mean) * scale * tl.load(weight + at, mask=at < n, other=0.0).to(tl.float32)
        if BIAS:
            result += tl.load(bias + at, mask=at < n, other=0.0).to(tl.float32)
        tl.store(y + row * n + at, result.to(y.dtype.element_ty), mask=at < n)


def layer_norm(x, weight, bias, eps):
    x, weight = x.contiguous(), weight.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        n = x.shape[-1]
        given = x if bias is None else bias.contiguous()
        # One warp: lanes of others would store the sum again, and NaN in the place of infinity.
        _welford[(x.numel() // n,)](x, weight, given, y, n, eps, BLOCK=128, BIAS=bias is not None, num_warps=1)
    return y
