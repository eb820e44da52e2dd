"""Attention, broken."""

import math

import torch

from kernelmux.registry.backend import Implementation


def _run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float, shift: int) -> torch.Tensor:
    """In float64; key j is visible to query i iff j <= i + shift."""
    group = q.shape[1] // max(k.shape[1], 1)
    k, v = (t.double().repeat_interleave(group, 1) for t in (k, v))
    s = q.double() @ k.mT * scale
    if causal:
        i, j = (torch.arange(n, device=s.device) for n in s.shape[-2:])
        s = torch.where(j <= i[:, None] + shift, s, -math.inf)
    return (torch.softmax(s, -1) @ v).to(q.dtype).contiguous()


def sound(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    return _run(q, k, v, causal, scale, k.shape[2] - q.shape[2])


def top_left(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    return _run(q, k, v, causal, scale, 0)


def sees_the_next(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    return _run(q, k, v, causal, scale, k.shape[2] - q.shape[2] + 1)


def own_scale(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    return sound(q, k, v, causal, 1 / math.sqrt(q.shape[-1]))


def heads_in_turn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    times = q.shape[1] // max(k.shape[1], 1)
    return sound(q, k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1), causal, scale)


VARIANTS = {
    "sound": Implementation(fn=sound, idea="nothing is wrong with it", arithmetic="mma"),
    "top_left": Implementation(fn=top_left, idea="the causal mask is aligned at the first key", arithmetic="mma"),
    "sees_the_next": Implementation(fn=sees_the_next, idea="the causal mask shows one key too many", arithmetic="mma"),
    "own_scale": Implementation(fn=own_scale, idea="the scale argument is ignored", arithmetic="mma"),
    "heads_in_turn": Implementation(fn=heads_in_turn, idea="grouped heads are dealt out in turn", arithmetic="mma"),
}

CAUGHT_BY = {"top_left": "accuracy", "sees_the_next": "accuracy", "own_scale": "accuracy", "heads_in_turn": "accuracy"}
