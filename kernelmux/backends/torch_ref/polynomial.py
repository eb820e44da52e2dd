"""Polynomial of the third degree by Horner's rule."""

import torch

from kernelmux.backends.torch_ref._conditions import Where
from kernelmux.registry.backend import Implementation
from kernelmux.registry.numerics import Rounding


def plain(x: torch.Tensor, a: float, b: float, c: float, d: float) -> torch.Tensor:
    return (((a * x + b) * x + c) * x + d).contiguous()


def exact(x: torch.Tensor, a: float, b: float, c: float, d: float) -> torch.Tensor:
    z = x.float()
    return (((a * z + b) * z + c) * z + d).to(x.dtype).contiguous()


def _sizes(x: torch.Tensor, a: float, b: float, c: float, d: float) -> torch.Tensor:
    """Of the coefficients, and of a x, a x + b, (a x + b) x and so on, each as large as it arrives in the result."""
    z, first = x.abs(), (a * x).abs()
    second = (a * x + b).abs()
    third = ((a * x + b) * x + c).abs()
    coefficients = first * z * z + abs(b) * z * z + (c * x).abs() + abs(d)
    return coefficients + first * z * z + 2 * second * z * z + 2 * third * z


STEPS = Rounding("coefficients and every step", _sizes, lambda x, *rest: x.abs() ** 3 + 3 * x * x + 3 * x.abs() + 2)

HELD = Where(
    "|a| + |b| + |c| + |d| that the dtype of x holds",
    lambda call: sum(map(abs, call.scalars.values())) <= torch.finfo(call.dtype).max,
    "a step of small x may be beyond the dtype of x where the sum is not",
)

VARIANTS = {
    "plain": Implementation(fn=plain, idea="products and sums of torch", requires=(HELD,), rounds=(STEPS,)),
    "exact": Implementation(fn=exact, idea="products and sums of torch, in fp32"),
}
