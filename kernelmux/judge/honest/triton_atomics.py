"""Sums of squares by atomic additions to a zeroed buffer, declared as what they are: not the same bits in every call."""

import torch
import triton
import triton.language as tl

from kernelmux.registry.backend import Implementation

OP = "rms_norm"
FUNCTION = "rms_norm"
NEEDS = "triton"


@triton.jit
def _squares(x, total, n, parts, BLOCK: tl.constexpr):
    row = (tl.program_id(0) // parts).to(tl.int64)
    at = tl.program_id(0) % parts * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + row * n + at, mask=at < n, other=0.0).to(tl.float32)
    tl.atomic_add(total + row, tl.sum(value * value, 0))


@triton.jit
def _scaled(x, weight, y, total, n, parts, eps, BLOCK: tl.constexpr):
    row = (tl.program_id(0) // parts).to(tl.int64)
    at = tl.program_id(0) % parts * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + row * n + at, mask=at < n).to(tl.float32) / tl.sqrt(tl.load(total + row) / n + eps)
    value = value * tl.load(weight + at, mask=at < n).to(tl.float32)
    tl.store(y + row * n + at, value.to(y.dtype.element_ty), mask=at < n)


def _normalised(x, weight, eps):
    x, weight = x.contiguous(), weight.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        n = x.shape[-1]
        rows, parts = x.numel() // n, triton.cdiv(n, 64)
        total = torch.zeros(rows, dtype=torch.float32, device=x.device)
        _squares[(rows * parts,)](x, total, n, parts, BLOCK=64)
        _scaled[(rows * parts,)](x, weight, y, total, n, parts, eps, BLOCK=64)
    return y


rms_norm = Implementation(fn=_normalised, idea="sums by atomic additions", arithmetic="fp32", deterministic=False)
