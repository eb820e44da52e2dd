"""Attention, broken for unusual scales."""

import math

import torch

from kernelmux.registry.backend import Implementation


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    """In float64 but for the exponential."""
    group = q.shape[1] // max(k.shape[1], 1)
    k, v = (t.double().repeat_interleave(group, 1) for t in (k, v))
    s = q.double() @ k.mT * scale
    if causal:
        hidden = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(s.shape[-1] - s.shape[-2] + 1)
        s = torch.where(hidden, -math.inf, s)
    p = torch.exp((s - s.amax(-1, keepdim=True)).float()).double()
    return (p @ v / p.sum(-1, keepdim=True)).to(q.dtype).contiguous()


def sound(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    return _attention(q, k, v, causal, scale)


def zero_is_default(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    return _attention(q, k, v, causal, scale or 1 / math.sqrt(q.shape[-1]))


def scale_by_roots(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    """sqrt(|scale|) into q and k each, so that neither overflows: the sign is lost."""
    root = math.sqrt(abs(scale))
    return _attention(q.double() * root, k.double() * root, v, causal, 1.0).to(q.dtype)


def masked_by_product(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    """The mask is -inf before it is scaled; a guard against NaN then shows all keys where the scale is not positive."""
    return _attention(q, k, v, causal and scale > 0, scale)


VARIANTS = {
    "sound": Implementation(fn=sound, idea="nothing is wrong with it", arithmetic="mma"),
    "zero_is_default": Implementation(fn=zero_is_default, idea="a scale of 0 counts as none given", arithmetic="mma"),
    "scale_by_roots": Implementation(fn=scale_by_roots, idea="gives q and k a root of the scale", arithmetic="mma"),
    "masked_by_product": Implementation(fn=masked_by_product, idea="adds the mask before the scale", arithmetic="mma"),
}

CAUGHT_BY = {"zero_is_default": "scalars", "scale_by_roots": "scalars", "masked_by_product": "scalars"}
