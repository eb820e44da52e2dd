"""Queries, keys and values of one input in one product.

Three layers read the same rows. Those of keys and values are narrow where queries are in groups, and fill a GPU badly; the
gradients of the rows are three tensors, which are summed. As one layer they take one product each way, and no sum.
"""

from __future__ import annotations

from typing import Any, cast

import torch

import kernelmux as kx
from kernelmux.nn.linear import Linear
from kernelmux.nn.module import precision
from kernelmux.nn.watched import watched
from kernelmux.registry.call.bound_call import unusual
from kernelmux.registry.util import memory_format

NAMES = ("q_proj", "k_proj", "v_proj")
Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def together(module: Any, x: torch.Tensor) -> bool:
    """Whether one product does what three layers do: ours, without biases and hooks, in training with many rows.

    Their weights are copied into one matrix for that. With as many rows as that one has, the copy costs a third of what
    the sums of the gradients would.
    """
    if not torch.is_grad_enabled() or x.dim() != 3 or x.shape[1] == 0:
        return False
    layers: list[Any] = [getattr(module, name) for name in NAMES]
    for layer in layers:
        if not isinstance(layer, Linear) or cast(Any, layer).bias is not None or watched(layer) or layer.declined(x):
            return False
    if not (x.requires_grad or any(layer.weight.requires_grad for layer in layers)):
        return False
    rows: int = sum(layer.weight.shape[0] for layer in layers)
    return x.shape[0] * x.shape[1] >= rows


def heads(module: Any, x: torch.Tensor, columns: int) -> Three:
    """x [B, M, K] -> queries and keys, views of one tensor [B, M, all heads, columns], and values: [B, H, M, columns]."""
    weights = [getattr(module, name).weight for name in NAMES]
    y = kx.linear(x, torch.cat(weights), precision=precision(x.is_cuda)).view(*x.shape[:-1], -1, columns)
    counts = [len(w) // columns for w in weights]
    if torch.compiler.is_compiling() or unusual((y,)):
        q, k, v = torch.split(y.transpose(1, 2), counts, 1)
        return q, k, v.contiguous()
    found: Three = Split.apply(y, counts)  # type: ignore[no-untyped-call]
    return found


class Split(torch.autograd.Function):
    """[B, M, all heads, columns] -> tensors [B, H, M, columns], whose gradients lie so, and are copied beside each other.

    torch would copy them element by element. The values, which attention keeps for its gradient, are a tensor of their own:
    as a view they would keep the queries and keys too, of which it has those that are turned.
    """

    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, counts: list[int]) -> Any:
        ctx.counts, ctx.shape = counts, y.shape
        q, k, v = torch.split(y.transpose(1, 2), counts, 1)
        own = v.new_empty(v.shape)
        memory_format.copied(own, v)
        return q, k, own

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        if torch.is_grad_enabled():
            return torch.cat(grads, 1).transpose(1, 2), None
        found = grads[0].new_empty(ctx.shape)
        for part, g in zip(torch.split(found.transpose(1, 2), ctx.counts, 1), grads, strict=True):
            memory_format.copied(part, g)
        return found, None
