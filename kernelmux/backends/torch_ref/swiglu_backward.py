"""Gradients of SwiGLU by what torch's autograd calls."""

import torch
import torch.nn.functional as F

from kernelmux.backends.torch_ref._activations import silu_gradient
from kernelmux.registry.backend import Implementation
from kernelmux.registry.numerics import Rounding

T = torch.Tensor


def plain(grad_out: T, a: T, b: T) -> tuple[T, T]:
    """Of F.silu(a) * b; silu(a) is computed again."""
    return silu_gradient(grad_out * b, a).contiguous(), (grad_out * F.silu(a)).contiguous()


def exact(grad_out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    g, x = grad_out.float(), a.float()
    grad_a = silu_gradient(g * b.float(), x)
    grad_b = g * torch.nn.functional.silu(x)
    return grad_a.to(a.dtype).contiguous(), grad_b.to(a.dtype).contiguous()


def _slope(a: T) -> T:
    return torch.ops.aten.silu_backward(torch.ones_like(a), a).abs()  # type: ignore[no-any-return]


ROUNDS = (
    Rounding("grad_out * b", lambda g, a, b: (g * b).abs() * _slope(a), lambda g, a, b: _slope(a), "grad_a"),
    Rounding("silu(a)", lambda g, a, b: (g * F.silu(a)).abs(), lambda g, a, b: g.abs(), "grad_b"),
)

VARIANTS = {
    "plain": Implementation(fn=plain, idea="torch.ops.aten.silu_backward and products", rounds=ROUNDS),
    "exact": Implementation(fn=exact, idea="torch.ops.aten.silu_backward and products, in fp32"),
}
