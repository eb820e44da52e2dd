"""Root-mean-square normalisation, broken for some eps."""

from pathlib import Path

import numpy as np
import torch

from kernelmux.conformance.mutants._cuda import launch
from kernelmux.registry.backend import Implementation

SOURCE = Path(__file__).with_suffix(".cu")
BLOCK = 64


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    z = x.double()
    return (z / torch.sqrt((z * z).mean(-1, keepdim=True) + eps) * weight.double()).to(x.dtype).contiguous()


def by_vector_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The root before the quotient: x / sqrt(norm(x)^2 / N + eps), all in fp32."""
    z = x.float()
    norm = torch.linalg.vector_norm(z, dim=-1, keepdim=True) / max(x.shape[-1], 1) ** 0.5
    return (z / torch.sqrt(norm * norm + eps) * weight.float()).to(x.dtype).contiguous()


def zero_is_default(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _rms_norm(x, weight, eps or 1e-6)


def never_below(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _rms_norm(x, weight, max(eps, 1e-6))


def rounded_eps(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """eps arrives as a bf16 number, which shows where it is not far below the mean square, and no power of two."""
    return _rms_norm(x, weight, torch.tensor(eps, dtype=torch.bfloat16).item())


def fixed_eps(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    n = x.shape[-1]
    if out.numel():
        rows = out.numel() // n
        args = (x, weight, out, np.float32(eps), np.int32(rows), np.int32(n))
        launch(SOURCE, "rms_norm_fixed_eps", -(-rows // BLOCK), BLOCK, args, x.dtype)
    return out


def vectors_have_eps(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The path for a single vector has its own way to read the arguments."""
    return _rms_norm(x, weight, (eps or 1e-6) if x.dim() == 1 else eps)


LAYOUT = {"x": "contiguous", "weight": "contiguous"}

VARIANTS = {
    "by_vector_norm": Implementation(fn=by_vector_norm, idea="takes the root before it divides: as right as any"),
    "zero_is_default": Implementation(fn=zero_is_default, idea="an eps of 0 counts as none given"),
    "never_below": Implementation(fn=never_below, idea="an eps below 1e-6 is raised to it"),
    "rounded_eps": Implementation(fn=rounded_eps, idea="eps has eight bits"),
    "fixed_eps": Implementation(fn=fixed_eps, idea="the kernel has an eps of its own", layout=LAYOUT),
    "vectors_have_eps": Implementation(fn=vectors_have_eps, idea="an eps of 0 counts as none given, for a vector"),
}

CAUGHT_BY = {name: "scalars" for name in VARIANTS if name != "by_vector_norm"}
