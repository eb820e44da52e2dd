"""Attention, broken for batches, groups and slices that small tests do not have."""

import torch

from kernelmux.conformance.mutants.basics.attention import Pair, T, sound
from kernelmux.registry.backend import Implementation
from kernelmux.registry.spec.sliding_windows import Limit

BLOCK = 64


def sliced_values(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    """k and v of a cache are cut alike, so that one pitch of heads is handed over: the shorter one."""
    if v.numel() and v.shape[1] > 1 and v.stride()[2:] == k.stride()[2:]:
        pitch = min(k.stride(1), v.stride(1))
        k, v = (x.as_strided(x.shape, (x.stride(0), pitch, *x.stride()[2:])) for x in (k, v))
    return sound(q, k, v, causal, scale, window, precision, ahead)


def first_batch(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    """Where heads share keys, the causal kernel forgets the batch."""
    if causal and k.shape[1] < q.shape[1]:
        k = k[:1].expand(k.shape)
    return sound(q, k, v, causal, scale, window, precision, ahead)


def full_blocks(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    """A full block of queries ends before its last key, where there are more keys than queries."""
    y, lse = sound(q, k, v, causal, scale, window, precision, ahead)
    m, n = q.shape[2], k.shape[2]
    if causal and m and m % BLOCK == 0 and n > m:
        last = sound(q[:, :, -1:], k[:, :, :-1], v[:, :, :-1], causal, scale, window, precision, ahead)
        y[:, :, -1:], lse[:, :, -1:] = last
    return y, lse


def whole_warps(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    """Columns beyond the last 32 have no part in the scores."""
    kept = q.shape[3] // 32 * 32 or q.shape[3]
    cut = torch.where(torch.arange(q.shape[3], device=q.device) < kept, q, 0)
    return sound(cut, k, v, causal, scale, window, precision, ahead)


VARIANTS = {
    "sliced_values": Implementation(fn=sliced_values, idea="reads the heads of k and v with one pitch"),
    "first_batch": Implementation(fn=first_batch, idea="causal, with shared keys: those of the first batch"),
    "full_blocks": Implementation(fn=full_blocks, idea="the last query of a full block misses its own key"),
    "whole_warps": Implementation(fn=whole_warps, idea="head lengths beyond a multiple of 32 are cut"),
}

CAUGHT_BY = {"sliced_values": "layout", "first_batch": "accuracy", "full_blocks": "accuracy", "whole_warps": "accuracy"}
