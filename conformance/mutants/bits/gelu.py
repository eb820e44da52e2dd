"""GELU, broken in the sign of zero and next to it."""

import math

import torch

from kernelmux.conformance.mutants import _triton
from kernelmux.registry.backend import Implementation


def _gelu(z: torch.Tensor, approximate: str) -> torch.Tensor:
    if approximate == "tanh":
        return 0.5 * z * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    tail: torch.Tensor = torch.special.erfc(-z / math.sqrt(2))
    return 0.5 * z * tail


def product_last(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """Phi first, then x times it: -0 stays -0."""
    z = x.double()
    tanh = 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    share = tanh if approximate == "tanh" else 0.5 * torch.special.erfc(-z / math.sqrt(2))
    return (z * share).to(x.dtype).contiguous()


def by_symmetry(x: torch.Tensor, approximate: str) -> torch.Tensor:
    from kernelmux.conformance.mutants.bits import _kernels

    if approximate == "tanh":
        return product_last(x, approximate)
    return _triton.flat(_kernels.gelu_by_symmetry, x)


def gated(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """Only what is above or below zero is computed; the rest stays as it was allocated."""
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    z = x.double()
    return torch.where(z == 0, out, _gelu(z, approximate)).to(x.dtype).contiguous()


def short_tail(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """In fp16 nothing is thought to be left below -4.2, where its subnormal numbers hold 500 values."""
    out, z = _gelu(x.double(), approximate), x.double()
    gone = (z < -4.2) & z.isfinite() if x.dtype == torch.float16 else z != z
    return torch.where(gone, torch.zeros_like(out).copysign(z), out).to(x.dtype).contiguous()


VARIANTS = {
    "product_last": Implementation(fn=product_last, idea="the share first, then the product: as right as any"),
    "by_symmetry": Implementation(fn=by_symmetry, idea="x + |x| erf|x| loses the sign of zero"),
    "gated": Implementation(fn=gated, idea="zeros of either sign become the zero of the allocation"),
    "short_tail": Implementation(fn=short_tail, idea="fp16 results that are subnormal are zero"),
}

CAUGHT_BY = {"by_symmetry": "special_values", "gated": "special_values", "short_tail": "accuracy"}
