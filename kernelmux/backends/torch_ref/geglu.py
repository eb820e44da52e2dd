"""GEGLU by torch.nn.functional.gelu and a product."""

import torch
import torch.nn.functional as F

from kernelmux.registry.backend import Implementation
from kernelmux.registry.numerics import Rounding


def plain(a: torch.Tensor, b: torch.Tensor, approximate: str) -> torch.Tensor:
    return (F.gelu(a, approximate=approximate) * b).contiguous()


def exact(a: torch.Tensor, b: torch.Tensor, approximate: str) -> torch.Tensor:
    return (torch.nn.functional.gelu(a.float(), approximate=approximate) * b.float()).to(a.dtype).contiguous()


GELU = Rounding(
    "gelu(a)",
    lambda a, b, approximate: (F.gelu(a, approximate=approximate) * b).abs(),
    lambda a, b, approximate: b.abs(),
)

VARIANTS = {
    "plain": Implementation(fn=plain, idea="torch.nn.functional.gelu(a) * b", rounds=(GELU,)),
    "exact": Implementation(fn=exact, idea="torch.nn.functional.gelu and a product, in fp32"),
}
