"""Whose turn a question is: where calls are emulated, variants of an operator and seeds share out what is much alike.

A run of tier ci asks every variant of our own the same combinations again, and each seed anew, and a call takes a good
part of a second. So some come in turns: what one variant is not asked, the next one in its ladder is, and itself
with another seed; two seeds ask each variant everything. A stranger's function has neither siblings nor other runs: it is
asked all at once, and so is every variant in the larger tiers, on a GPU, and where cases, dtypes or coverage are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from kernelmux.candidate import implementation as candidate
from kernelmux.registry.backend import lookup as registered

if TYPE_CHECKING:
    from kernelmux.conformance.judging.probe import Probe

T = TypeVar("T")


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
