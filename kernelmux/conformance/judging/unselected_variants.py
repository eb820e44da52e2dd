"""The rungs of a ladder that no call picks by itself: they are there to learn from, and run where they are named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cache

from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.spec import Call, OpSpec

TIERS = ("smoke", "ci")  # their cases are small, and have every reason why a rung may not run a call
GPUS = ((7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (12, 0))  # capabilities, on which other rungs are picked


def superseded(op: str, backend: str, variant: str) -> bool:
    """Whether later rungs take every case of these tiers, in every dtype and on every GPU, that this one can run."""
    return variant not in _picked(op, backend)


def last(op: str, backend: str) -> str:
    """The last rung, which stands for all in checks of what torch does around a call."""
    return list(registered.variants(backend, op))[-1]


@cache
def _picked(op: str, backend: str) -> frozenset[str]:
    """The variants that are the default of their backend for some case; the last one is, whatever it takes."""
    ladder = tuple(registered.variants(backend, op))
    able = ([v for v in ladder if not dispatch.verdicts(c, backend, v)[0].reasons] for c in _calls(catalog.spec(op)))
    return frozenset(names[-1] for names in able if names) | {ladder[-1]}


def _calls(spec: OpSpec) -> Iterator[Call]:
    for case in (case for case in spec.cases if case.tier in TIERS):
        for dtype in case.dtypes or spec.dtypes:
            for capability in GPUS:
                with suppress(ArgumentError):
                    yield spec.hypothetical(case, dtype, capability=capability)
