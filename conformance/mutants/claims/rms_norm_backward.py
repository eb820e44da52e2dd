"""Gradients of rms_norm that are not what a caller is promised."""

from typing import Any

import torch

from kernelmux.registry.backend import Implementation


def as_list(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Any:
    g, z, w = (t.double() for t in (grad_out, x, weight))
    r = torch.rsqrt((z * z).mean(-1, keepdim=True) + eps)
    grad_x = r * (g * w - z * r * r * (g * w * z).mean(-1, keepdim=True))
    grad_weight = (g * z * r).reshape(-1, x.shape[-1]).sum(0) if x.shape[-1] else w
    return [grad_x.to(x.dtype).contiguous(), grad_weight.to(x.dtype).contiguous()]


VARIANTS = {"as_list": Implementation(fn=as_list, idea="returns a list of its outputs")}

CAUGHT_BY = {"as_list": "accuracy"}
