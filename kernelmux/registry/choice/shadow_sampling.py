"""Which calls a shadow computes too: a share of them, drawn by a generator of its own, so that a run repeats."""

from __future__ import annotations

import itertools

from kernelmux.registry.choice import requests
from kernelmux.registry.choice.requests import Names, Shadow
from kernelmux.registry.errors import ArgumentError, shown

_scopes = itertools.count()


def shadow(names: Names | None, sample: object) -> Shadow | None:
    """What `use(shadow=, sample=)` asks for; ArgumentError for a share that is none, or that is a share of nothing."""
    if names is None:
        if sample is not None:
            raise ArgumentError(
                f"use(): sample: expected shadow= to name what computes along, got {shown(sample)} alone"
            )
        return None
    share = 1.0 if sample is None else sample
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise ArgumentError(f"use(): sample: expected a share of the calls, 0 < sample <= 1, got {shown(sample)}")
    return Shadow(requests.parse(names, "use(shadow=)"), float(share), next(_scopes))
