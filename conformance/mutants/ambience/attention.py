"""Attention that changes modes of the whole process."""

import torch

from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.backend import Implementation


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    result: torch.Tensor = sound("attention", q, k, v, causal, scale)
    return result


def fast_mode_left(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    """Deterministic algorithms would be slow, so it turns them off."""
    torch.use_deterministic_algorithms(False)
    return _attention(q, k, v, causal, scale)


def mask_anywhere(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    """The indices of the mask live where torch puts tensors by default."""
    first = torch.arange(q.shape[2])
    y = _attention(q, k, v, causal, scale)
    return torch.where((first >= 0).to(q.device)[:, None], y, 0.0).to(q.dtype)


VARIANTS = {
    "fast_mode_left": Implementation(fn=fast_mode_left, idea="turns off deterministic algorithms", arithmetic="mma"),
    "mask_anywhere": Implementation(fn=mask_anywhere, idea="makes its indices on the default device", arithmetic="mma"),
}

CAUGHT_BY = {"fast_mode_left": "ambience", "mask_anywhere": "ambience"}
