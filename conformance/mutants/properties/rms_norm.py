"""Root-mean-square normalisation whose rows know of one another."""

import torch

from kernelmux.registry.backend import Implementation


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float, short: bool) -> torch.Tensor:
    """Both forms are as right; roundings tell them apart."""
    z = x.float()
    square = (z * z).mean(-1, keepdim=True) + eps
    normalised = z * (1 / torch.sqrt(square)) if short else z / torch.sqrt(square)
    return (normalised * weight.float()).to(x.dtype).contiguous()


def sound(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _norm(x, weight, eps, short=True)


def by_count(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _norm(x, weight, eps, short=x.numel() > 2 * x.shape[-1])


VARIANTS = {
    "sound": Implementation(fn=sound, idea="every row is multiplied by the reciprocal of its root"),
    "by_count": Implementation(fn=by_count, idea="divides by the root if there are no more than two rows"),
}

CAUGHT_BY = {"by_count": "properties"}
