"""Norms of rows as graphs of cuDNN: x [..., N] as images [M N 1 1], with a weight for each channel.

Gradients take what the forward call found of each row. A training step would hold it, so that it is computed once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

from kernelmux.perf.peers._cudnn_frontend import compute, module
from kernelmux.perf.peers._libraries import once

T = torch.Tensor


def rows(x: T) -> T:
    return x.reshape(-1, x.shape[-1], 1, 1)


def columns(weight: T) -> T:
    return weight.view(1, -1, 1, 1)


def _forward(name: str, phase: str, graph: Any, x: Any, weight: Any, *bias_and_eps: Any) -> list[Any]:
    *bias, eps = bias_and_eps
    kinds = module()
    epsilon = graph.tensor_scalar(eps, kinds.scalar_type.RUNTIME_PARAM)
    more = {"bias": bias[0] if bias else None, "epsilon": epsilon}
    found = getattr(graph, name)(
        norm_forward_phase=getattr(kinds.norm_forward_phase, phase), input=x, scale=weight, **more
    )
    return [y for y in found if y is not None]


def _backward(name: str, graph: Any, *tensors: Any) -> list[Any]:
    more = {"has_dbias": False} if name == "rmsnorm_backward" else {}
    return [g for g in getattr(graph, name)(*tensors, **more) if g is not None]


_INFERENCE = {name: (partial(_forward, name, "INFERENCE"),) for name in ("rmsnorm", "layernorm")}
_TRAINING = {name: (partial(_forward, name, "TRAINING"),) for name in ("rmsnorm", "layernorm")}
_GRADIENTS = {name: (partial(_backward, f"{name}_backward"),) for name in ("rmsnorm", "layernorm")}


def norm(name: str, x: T, weight: T, bias: T | None, eps: float) -> T:
    """The output of "rmsnorm" or "layernorm"."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    given = (rows(x), columns(weight)) if bias is None else (rows(x), columns(weight), columns(bias))
    compute(_INFERENCE[name], given, (rows(y),), eps)
    return y


@cache
def _statistics(name: str, eps: float) -> Callable[[T], T]:
    """Gives of each row of x the mean, where the norm subtracts it, and 1 / sqrt(variance + eps): [1 or 2, M, 1, 1, 1]."""

    @once
    def of_rows(x: T) -> T:
        m, n = rows(x).shape[:2]
        numbers = torch.empty(2 if name == "layernorm" else 1, m, 1, 1, 1, dtype=torch.float32, device=x.device)
        ones, zeros = torch.ones(1, n, 1, 1, dtype=x.dtype, device=x.device), x.new_zeros(1, n, 1, 1)
        given = (rows(x), ones, zeros) if name == "layernorm" else (rows(x), ones)
        compute(_TRAINING[name], given, (torch.empty_like(rows(x)), *numbers), eps)
        return numbers

    return of_rows


def gradients(name: str, grad_out: T, x: T, weight: T, eps: float) -> tuple[T, ...]:
    """Of x, of the weight, and of the bias of "layernorm"."""
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    others = [torch.empty_like(weight) for _ in range(2 if name == "layernorm" else 1)]
    given = (rows(grad_out), rows(x), columns(weight), *_statistics(name, eps)(x))
    compute(_GRADIENTS[name], given, (rows(grad_x), *map(columns, others)))
    return (grad_x, *others)
