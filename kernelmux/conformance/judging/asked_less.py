"""What a variant is asked less of: rungs of a ladder that no call picks by itself, and questions that come in turns.

Such rungs are there to learn from, and run where they are named. Turns: a run of tier ci, emulated, asks every variant of
our own the same combinations again, and each seed anew, and a call takes a good part of a second. So some come in turns:
what one variant is not asked, the next one in its ladder is, and itself with another seed; two seeds ask each variant
everything. A stranger's function has neither siblings nor other runs: it is asked all at once, and so is every variant in
the larger tiers, on a GPU, and where cases, dtypes or coverage are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from typing import TypeVar

from kernelmux.candidate import implementation as candidate
from kernelmux.conformance.judging.probe import Probe
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.spec import Call, OpSpec

T = TypeVar("T")
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


def shares(probe: Probe) -> bool:
    """Whether the variant is asked its part alone."""
    own = probe.brief and probe.options.tier == "ci" and not probe.options.coverage
    return own and candidate.process_of(probe.implementation.fn) is None


def due(probe: Probe, turn: int) -> bool:
    """Whether question number `turn` is asked: half of them are.

    Dtypes take turns by their number as well: neighbours of one half come in different ones (the first quotient), and with
    later seeds a question comes in each of them (the second), whether its case has all dtypes or two alone.
    """
    if not shares(probe):
        return True
    seed, dtypes = probe.options.seed, len(probe.spec.dtypes)
    later = seed // (2 * dtypes if dtypes % 2 else dtypes)
    return (turn + turn // 2 + _place(probe) + seed + later) % 2 == 0


def shared_out(probe: Probe, found: Iterable[T]) -> Iterator[T]:
    """Those of a list of questions whose turn it is."""
    return (one for turn, one in enumerate(found) if due(probe, turn))


def _place(probe: Probe) -> int:
    """The place of the variant in its ladder; of backends, which often have as many rungs, each begins with another one."""
    places = *registered.variants(probe.backend, probe.spec.name), probe.variant
    return places.index(probe.variant) + sorted((*registered.backends(), probe.backend)).index(probe.backend)
