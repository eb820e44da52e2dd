"""Root-mean-square normalisation, broken."""

import torch

from kernelmux.registry.backend import Implementation


def sound(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    z = x.double()
    return (z / torch.sqrt((z * z).mean(-1, keepdim=True) + eps) * weight.double()).to(x.dtype).contiguous()


def centred(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    z = x.double()
    return (z / torch.sqrt(z.var(-1, correction=0, keepdim=True) + eps) * weight.double()).to(x.dtype).contiguous()


def eps_outside(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    z = x.double()
    return (z / (torch.sqrt((z * z).mean(-1, keepdim=True)) + eps) * weight.double()).to(x.dtype).contiguous()


def two_roundings(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Rounds to the storage dtype before the weight; fp32 through bf16."""
    low = torch.bfloat16 if x.dtype == torch.float32 else x.dtype
    one = torch.ones_like(weight, dtype=torch.float64)
    return (sound(x.double(), one, eps).to(low) * weight.to(low)).to(x.dtype)


def one_percent(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return sound(x, weight, eps) * 1.01


VARIANTS = {
    "sound": Implementation(fn=sound, idea="nothing is wrong with it"),
    "centred": Implementation(fn=centred, idea="subtracts the mean, as layer_norm does"),
    "eps_outside": Implementation(fn=eps_outside, idea="adds eps after the square root"),
    "two_roundings": Implementation(fn=two_roundings, idea="rounds before the weight and after it"),
    "one_percent": Implementation(fn=one_percent, idea="is one percent too large"),
}

CAUGHT_BY = {"centred": "accuracy", "eps_outside": "accuracy", "two_roundings": "accuracy", "one_percent": "parity"}
