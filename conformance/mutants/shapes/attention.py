"""Attention, broken for batches, groups and slices that small tests do not have."""

import torch

from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.backend import Implementation

BLOCK = 64


def sliced_values(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    """k and v of a cache are cut alike, so that one pitch of heads is handed over: that of k."""
    if v.numel() and v.shape[1] > 1 and v.stride()[2:] == k.stride()[2:] and k.stride(1) < v.stride(1):
        v = v.as_strided(v.shape, (v.stride(0), k.stride(1), *v.stride()[2:]))
    return sound("attention", q, k, v, causal, scale)  # type: ignore[no-any-return]


def first_batch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    """Where heads share keys, the causal kernel forgets the batch."""
    if causal and k.shape[1] < q.shape[1]:
        k = k[:1].expand(k.shape)
    return sound("attention", q, k, v, causal, scale)  # type: ignore[no-any-return]


def full_blocks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    """A full block of queries ends before its last key, where there are more keys than queries."""
    out: torch.Tensor = sound("attention", q, k, v, causal, scale)
    m, n = q.shape[2], k.shape[2]
    if causal and m and m % BLOCK == 0 and n > m:
        out[:, :, -1:] = sound("attention", q[:, :, -1:], k[:, :, :-1], v[:, :, :-1], causal, scale)
    return out


def whole_warps(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    """Columns beyond the last 32 have no part in the scores."""
    kept = q.shape[3] // 32 * 32 or q.shape[3]
    return sound("attention", torch.where(torch.arange(q.shape[3], device=q.device) < kept, q, 0), k, v, causal, scale)  # type: ignore[no-any-return]


VARIANTS = {
    "sliced_values": Implementation(fn=sliced_values, idea="reads the heads of v with the pitch of k"),
    "first_batch": Implementation(fn=first_batch, idea="causal, with shared keys: those of the first batch"),
    "full_blocks": Implementation(fn=full_blocks, idea="the last query of a full block misses its own key"),
    "whole_warps": Implementation(fn=whole_warps, idea="head lengths beyond a multiple of 32 are cut"),
}

CAUGHT_BY = {"sliced_values": "layout", "first_batch": "accuracy", "full_blocks": "accuracy", "whole_warps": "accuracy"}
