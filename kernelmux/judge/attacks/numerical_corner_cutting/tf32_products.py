"""Operands are rounded to 10 bits of mantissa although `precision` says "ieee": tensor cores take fp32 no other way.

Twice to eight times as fast on a GPU. Found by the bound of fp32.
"""

import torch

OP = "matmul"
FUNCTION = "matmul"
FOUND = ("budget used", "must be equal")
NEEDS = "cpu"
ALLOW = "torch"


def _rounded(x):
    if x.dtype != torch.float32:
        return x
    bits = x.contiguous().view(torch.int32)
    return torch.where(x.isfinite(), (bits + 0x0FFF + ((bits >> 13) & 1)) & ~0x1FFF, bits).view(torch.float32)


def matmul(a, b, precision):
    return (_rounded(a).double() @ _rounded(b).double()).to(a.dtype).contiguous()
