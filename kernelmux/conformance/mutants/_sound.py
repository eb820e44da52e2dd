"""What is right, in plain torch, for mutants to break: the specs' references, rounded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernelmux.registry import catalog


def sound(op: str, *arguments: Any) -> Any:
    """The outputs of an operator on checked arguments: fresh contiguous tensors with the dtype of the first one."""
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    device = torch.device("cuda") if tensors[0].is_pinned() else tensors[0].device
    raised: list[Any] = [
        a.to(device, torch.float64 if a.is_floating_point() else a.dtype) if isinstance(a, torch.Tensor) else a
        for a in arguments
    ]
    reference: Callable[..., Any] = PLAIN.get(op) or catalog.spec(op).reference
    result = reference(*raised)
    if isinstance(result, tuple):
        return tuple(_rounded(r, tensors[0].dtype) for r in result)
    return _rounded(result, tensors[0].dtype)


def _gradients(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Any:
    """As the spec has it, without autograd, which inference mode does not allow."""
    r = torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)
    mean = (grad * weight * x).mean(-1, keepdim=True) if x.shape[-1] else r
    grad_weight = (grad * x * r).reshape(-1, x.shape[-1]).sum(0) if x.numel() else torch.zeros_like(weight)
    return r * (grad * weight - x * r * r * mean), grad_weight


def _transposed(x: torch.Tensor) -> torch.Tensor:
    """As the spec has it, without its loop over rows: a check makes a million of them."""
    return x.t()


def _rounded(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(x.shape, dtype=dtype, device=x.device).copy_(x)


PLAIN: dict[str, Callable[..., Any]] = {"rms_norm_backward": _gradients, "transpose": _transposed}
