"""Linear layer by torch.nn.functional.linear and an activation; `exact` has the sums of torch_ref's matmul."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from kernelmux.backends.torch_ref._conditions import HALVES, INSIDE_ROWS
from kernelmux.backends.torch_ref.matmul import coarse, finer
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Dtypes
from kernelmux.registry.numerics import Rounding


def gelu(z: torch.Tensor) -> torch.Tensor:
    """torch's, but for +inf on a CPU, for which vectors of AVX-512 give NaN."""
    y = F.gelu(z)
    return y if z.is_cuda else torch.where(z == torch.inf, z, y)


PLAIN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"gelu": F.gelu, "silu": F.silu, "relu": F.relu}
ACTIVATIONS = PLAIN | {"gelu": gelu}


def plain(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str, precision: str
) -> tuple[torch.Tensor, torch.Tensor]:
    z = F.linear(x, weight, bias).contiguous()
    return (z, z.new_empty(0)) if activation == "none" else (PLAIN[activation](z), z)


def exact(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str, precision: str
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, b = x.flatten(0, -2) if x.dim() > 1 else x[None], weight.t()
    if coarse(rows, b, precision):
        sums = finer(rows, b)
        z = (sums if bias is None else sums + bias).to(x.dtype)
    else:
        z = F.linear(rows, weight, bias)
    z = z.view(*x.shape[:-1], len(weight))
    return (z, z.new_empty(0)) if activation == "none" else (ACTIVATIONS[activation](z), z)


def _terms(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *rest: str) -> torch.Tensor:
    return F.linear(x.abs(), weight.abs(), None if bias is None else bias.abs())


def _saved(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *rest: str) -> torch.Tensor:
    return x.new_zeros(0) if rest[0] == "none" else _terms(x, weight, bias)


SLOPE = 1.2  # no activation is steeper
PARTS = (
    Rounding(
        "the parts of a sum that cuBLAS splits",
        lambda *call: SLOPE * _terms(*call),
        lambda x, *rest: torch.full((), SLOPE, dtype=x.dtype),
        "y",
    ),
    Rounding("the parts of a sum that cuBLAS splits", _saved, lambda x, *rest: torch.ones((), dtype=x.dtype), "z"),
)

VARIANTS = {
    "plain": Implementation(
        fn=plain,
        idea="torch.nn.functional.linear and the activation",
        requires=(Dtypes("x", *HALVES), INSIDE_ROWS),
        arithmetic="mma",
        rounds=PARTS,
    ),
    "exact": Implementation(
        fn=exact, idea="torch.nn.functional.linear, or a product in a wider dtype, and the activation", arithmetic="mma"
    ),
}
