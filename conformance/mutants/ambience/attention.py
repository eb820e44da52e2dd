"""Attention that changes modes of the whole process."""

import torch

from kernelmux.conformance.mutants.basics.attention import Pair, T, sound
from kernelmux.registry.backend import Implementation
from kernelmux.registry.spec.sliding_windows import Limit


def fast_mode_left(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    """Deterministic algorithms would be slow, so it turns them off."""
    torch.use_deterministic_algorithms(False)
    return sound(q, k, v, causal, scale, window, precision, ahead)


def mask_anywhere(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    """The indices of the mask live where torch puts tensors by default."""
    first = torch.arange(q.shape[2])
    y, lse = sound(q, k, v, causal, scale, window, precision, ahead)
    return torch.where((first >= 0).to(q.device)[:, None], y, 0.0).to(q.dtype), lse


VARIANTS = {
    "fast_mode_left": Implementation(fn=fast_mode_left, idea="turns off deterministic algorithms", arithmetic="mma"),
    "mask_anywhere": Implementation(fn=mask_anywhere, idea="makes its indices on the default device", arithmetic="mma"),
}

CAUGHT_BY = {"fast_mode_left": "ambience", "mask_anywhere": "ambience"}
