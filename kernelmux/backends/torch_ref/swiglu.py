"""SwiGLU by torch.nn.functional.silu and a product."""

import torch
import torch.nn.functional as F

from kernelmux.registry.backend import Implementation
from kernelmux.registry.numerics import Rounding


def plain(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (F.silu(a) * b).contiguous()


def exact(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (torch.nn.functional.silu(a.float()) * b.float()).to(a.dtype).contiguous()


SILU = Rounding("silu(a)", lambda a, b: (F.silu(a) * b).abs(), lambda a, b: b.abs())

VARIANTS = {
    "plain": Implementation(fn=plain, idea="torch.nn.functional.silu(a) * b", rounds=(SILU,)),
    "exact": Implementation(fn=exact, idea="torch.nn.functional.silu and a product, in fp32"),
}
