"""The tokens that models agree on, and what the margins of their logits make likely."""

from __future__ import annotations

import math
from typing import Any

import torch

from kernelmux.nn.check_report import Tokens

Tensor = torch.Tensor


def tokens(exact: Any, plain: Any, patched: Any) -> Tokens | None:
    """How often the models have the same best token, of logits [..., V]; None for a model without."""
    found = [getattr(result, "logits", None) for result in (exact, plain, patched)]
    if not all(isinstance(x, Tensor) and x.dim() > 1 and x.shape[-1] > 1 for x in found):
        return None
    logits = [x.double().flatten(0, -2) for x in found]  # type: ignore[union-attr]
    best = [x.argmax(-1) for x in logits]
    top = logits[0].topk(2, -1).values
    margin = top[:, 0] - top[:, 1]
    sigma = [float((x - logits[0]).square().mean().sqrt()) for x in logits[1:]]
    a, b = (torch.special.ndtr(-margin / (math.sqrt(2) * max(s, 1e-300))) for s in sigma)  # that a model swaps the two
    apart = best[1] != best[2]
    return Tokens(
        places=len(margin),
        plain_patched=_agreement(best[1], best[2]),
        plain_exact=_agreement(best[1], best[0]),
        patched_exact=_agreement(best[2], best[0]),
        expected=float(((1 - a) * (1 - b) + a * b).mean()),
        margin=float(margin.median()),
        widest=float(margin[apart].max()) if bool(apart.any()) else 0.0,
        error_plain=sigma[0],
        error_patched=sigma[1],
    )


def _agreement(a: Tensor, b: Tensor) -> float:
    return float((a == b).double().mean())
