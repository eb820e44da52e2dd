"""Which calls a shadow computes too: a share of them, drawn by a generator of its own, so that a run repeats."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from functools import cached_property

from kernelmux.registry import backend as registered
from kernelmux.registry import requests
from kernelmux.registry.errors import ArgumentError, shown
from kernelmux.registry.requests import Names, Request

_scopes = itertools.count()


class Shadow:
    """The backends that compute along, as a request of their own, and the draws of one scope.

    Two scopes of a program draw other calls, or a scope that is made in every step would only ever see the same ones; the
    n-th scope of a run draws those that it drew in the run before. torch's generators are not touched.
    """

    def __init__(self, request: Request, sample: float, seed: int) -> None:
        self.request = request
        self.sample = sample
        self._random = random.Random(seed)

    def drawn(self) -> bool:
        """Whether the next call is computed twice."""
        return self._random.random() < self.sample

    @cached_property
    def following(self) -> Shadow:
        """The same for the operators of a backward: the backends without their variants, and the same draws."""
        names = dict.fromkeys(n if n == "auto" else registered.split(n)[0] for n in self.request.names)
        made = Shadow(replace(self.request, names=tuple(names)), self.sample, 0)
        made._random = self._random
        return made


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
