"""Attention with the arguments of torch.nn.functional.scaled_dot_product_attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import kernelmux as kx
from kernelmux.nn.module import precision
from kernelmux.registry.call.bound_call import unusual
from kernelmux.registry.util import memory_format


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    backend: str | Sequence[str] | None = None,
) -> torch.Tensor:
    """softmax(scale * query key^T) value, of [B, H, M, D] with [B, G, N, D] twice -> [B, H, M, D].

    is_causal means what it means in torch: query i sees keys 0 to i (`kernelmux.attention` aligns to the last key instead).
    fp32 is multiplied in fp32, or in tf32 where torch's flag for the device allows it, as in `Linear`. The result lies in
    memory as value does: where that is a transposed view of [B, N, G, D], `.transpose(1, 2).flatten(2)` copies nothing.
    UnsupportedError for a mask and for dropout; ArgumentError for H != G without enable_gqa, and for what
    `kernelmux.attention` does not take.
    """
    if problem := _unsupported(query, key, attn_mask, dropout_p):
        raise kx.UnsupportedError(f"kernelmux.nn.attention: {problem}")
    if not enable_gqa and query.shape[1] != key.shape[1]:
        got = f"{query.shape[1]} of queries and {key.shape[1]} of keys"
        raise kx.ArgumentError(f"kernelmux.nn.attention: expected as many heads unless enable_gqa=True, got {got}")
    rest: dict[str, Any] = {"scale": scale, "precision": precision(query.is_cuda), "backend": backend}
    return in_order(_attended(query, key, value, is_causal, rest), value)


def _attended(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool, rest: dict[str, Any]
) -> torch.Tensor:
    rows, columns = query.shape[2], key.shape[2]
    if not is_causal:
        return kx.attention(query, key, value, False, **rest)
    if rows <= columns:  # no query sees a key beyond its own number
        return kx.attention(query, key[:, :, :rows], value[:, :, :rows], True, **rest)
    # Queries beyond the last key see all of them.
    triangle = kx.attention(query[:, :, :columns], key, value, True, **rest)
    return torch.cat((triangle, kx.attention(query[:, :, columns:], key, value, False, **rest)), 2)


def in_order(y: torch.Tensor, wanted: memory_format.Order | torch.Tensor) -> torch.Tensor:
    """y with its axes in another order in memory, or in that of a tensor: a copy at the speed of memory, or y itself."""
    if torch.compiler.is_compiling() or unusual((y,)):
        return y  # torch sees the copies that follow, and makes them its own way
    order = memory_format.order(wanted) if isinstance(wanted, torch.Tensor) else wanted
    if order is None:
        return y
    if not (torch.is_grad_enabled() and y.requires_grad):
        return memory_format.laid(y, order)
    found: torch.Tensor = InOrder.apply(y, order)  # type: ignore[no-untyped-call]
    return found


class InOrder(torch.autograd.Function):
    """The copy of `memory_format.laid`; a gradient passes as it is."""

    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, wanted: memory_format.Order) -> torch.Tensor:
        return memory_format.laid(y, wanted)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0], None


def _unsupported(query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, dropout: float) -> str | None:
    """Which of torch's arguments the operator has no counterpart for, or None."""
    if mask is not None:
        return "attn_mask: expected None, got a mask: the operator knows is_causal alone"
    if dropout:
        return f"dropout_p: expected 0.0, got {dropout}"
    if query.dim() != 4 or key.dim() != 4:
        return f"expected tensors [B H M D], got {list(query.shape)} and {list(key.shape)}"
    return None
