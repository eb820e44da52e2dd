"""Gradients of rms_norm through a workspace that is kept."""

import torch

from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.backend import Implementation

Pair = tuple[torch.Tensor, torch.Tensor]
_partial: dict[object, torch.Tensor] = {}


def shared_partials(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
    """What each row gives to grad_weight waits in one workspace for each shape."""
    grad_x, grad_weight = sound("rms_norm_backward", grad_out, x, weight, eps)
    if not x.numel():
        return grad_x, grad_weight
    g, v = (t.double().reshape(-1, x.shape[-1]) for t in (grad_out, x))
    key = (g.shape, x.device)
    partial = _partial.setdefault(key, torch.empty(g.shape, dtype=torch.float64, device=x.device))
    partial.copy_(g * v * torch.rsqrt(v.square().mean(-1, keepdim=True) + eps))
    return grad_x, torch.empty_like(weight).copy_(partial.sum(0))


def kept_weight_gradient(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
    """grad_weight alternates between the rows of a buffer."""
    grad_x, grad_weight = sound("rms_norm_backward", grad_out, x, weight, eps)
    key = ("rows", weight.shape, weight.dtype, weight.device)
    rows = _partial.setdefault(key, torch.empty(4, *weight.shape, dtype=weight.dtype, device=weight.device))
    rows.copy_(rows.roll(1, 0))
    return grad_x, rows[0].copy_(grad_weight)


def parts_of_before(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
    """Sixteen partial sums for each length of rows, all of which are added; a call with fewer rows leaves the last ones."""
    grad_x, grad_weight = sound("rms_norm_backward", grad_out, x, weight, eps)
    if not x.numel():
        return grad_x, grad_weight
    g, v = (t.double().reshape(-1, x.shape[-1]) for t in (grad_out, x))
    terms = g * v * torch.rsqrt(v.square().mean(-1, keepdim=True) + eps)
    key = ("parts", x.shape[-1], x.device)
    parts = _partial.setdefault(key, torch.zeros(16, x.shape[-1], dtype=torch.float64, device=x.device))
    for row in range(min(len(terms), 16)):
        parts[row] = terms[row::16].sum(0)
    return grad_x, torch.empty_like(weight).copy_(parts.sum(0))


VARIANTS = {
    "parts_of_before": Implementation(fn=parts_of_before, idea="fewer rows find partial sums of more rows"),
    "shared_partials": Implementation(fn=shared_partials, idea="threads share the partial sums"),
    "kept_weight_gradient": Implementation(fn=kept_weight_gradient, idea="grad_weight is a row of a kept buffer"),
}

CAUGHT_BY = {"parts_of_before": "state", "shared_partials": "state", "kept_weight_gradient": "state"}
