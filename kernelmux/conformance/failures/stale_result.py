"""What explains a result beyond its bound: it is the right one of an earlier call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from kernelmux.conformance.inputs.trials import Trial
from kernelmux.registry.numerics import Arithmetic
from kernelmux.registry.spec import numerics

EARLIER = "the output is the one of an earlier call"


def earlier(known: Iterable[Trial], how: Callable[[Trial], Sequence[Arithmetic]], i: int, got: torch.Tensor) -> str:
    """Of which of the known trials `got` is output i, in words, or ""; how: the variant accumulates."""
    for trial in known:
        ref, limit = trial.references[i], trial.bounds(how(trial))[i]
        if limit is not None and ref.shape == got.shape and numerics.compare(got, ref, limit.total).passed:
            note = f" ({trial.note})" if trial.note else ""
            return f"{EARLIER}: case {trial.case}{note} seed {trial.seed:#x}"
    return ""
