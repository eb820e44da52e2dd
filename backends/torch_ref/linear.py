"""Linear layer by torch.nn.functional.linear, with the sums of torch_ref's matmul, and an activation."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from kernelmux.backends.torch_ref.matmul import coarse, finer
from kernelmux.registry.backend import Implementation


def gelu(z: torch.Tensor) -> torch.Tensor:
    """torch's, but for +inf on a CPU, for which vectors of AVX-512 give NaN."""
    y = F.gelu(z)
    return y if z.is_cuda else torch.where(z == torch.inf, z, y)


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"gelu": gelu, "silu": F.silu, "relu": F.relu}


def linear(
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


VARIANTS = {"eager": Implementation(fn=linear, idea="torch.nn.functional.linear and the activation", arithmetic="mma")}
