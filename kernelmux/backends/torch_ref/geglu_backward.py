"""Gradients of GEGLU by what torch's autograd calls."""

import torch
import torch.nn.functional as F

from kernelmux.registry.backend import Implementation
from kernelmux.registry.numerics import Rounding

T = torch.Tensor


def plain(grad_out: T, a: T, b: T, approximate: str) -> tuple[T, T]:
    """Of F.gelu(a) * b; gelu(a) is computed again."""
    grad_a = torch.ops.aten.gelu_backward(grad_out * b, a, approximate=approximate)
    return grad_a.contiguous(), (grad_out * F.gelu(a, approximate=approximate)).contiguous()


def exact(
    grad_out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, approximate: str
) -> tuple[torch.Tensor, torch.Tensor]:
    g, x = grad_out.float(), a.float()
    grad_a = torch.ops.aten.gelu_backward(g * b.float(), x, approximate=approximate)
    grad_b = g * torch.nn.functional.gelu(x, approximate=approximate)
    return grad_a.to(a.dtype).contiguous(), grad_b.to(a.dtype).contiguous()


def _slope(a: T, how: str) -> T:
    return torch.ops.aten.gelu_backward(torch.ones_like(a), a, approximate=how).abs()  # type: ignore[no-any-return]


ROUNDS = (
    Rounding(
        "grad_out * b",
        lambda g, a, b, how: (g * b).abs() * _slope(a, how),
        lambda g, a, b, how: _slope(a, how),
        "grad_a",
    ),
    Rounding(
        "gelu(a)", lambda g, a, b, how: (g * F.gelu(a, approximate=how)).abs(), lambda g, a, b, how: g.abs(), "grad_b"
    ),
)

VARIANTS = {
    "plain": Implementation(fn=plain, idea="torch.ops.aten.gelu_backward and products", rounds=ROUNDS),
    "exact": Implementation(fn=exact, idea="torch.ops.aten.gelu_backward and products, in fp32"),
}
