"""Every case of the tier in every dtype (where a run is brief: in turn) stays within the error bound of the spec."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from kernelmux import emulator
from kernelmux.conformance.check import Check
from kernelmux.conformance.inputs.layouts import LAYOUTS, LayoutRule
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.judging import ahead
from kernelmux.conformance.judging.probe import Probe
from kernelmux.conformance.variations import neighbouring_trials
from kernelmux.registry.call import dispatch
from kernelmux.registry.spec import Index
from kernelmux.registry.util import cards

MOVED = 24  # calls of one variant whose tensors lie elsewhere, at most

# The second where elements are as long as words.
MISALIGNED = [rule for rule in LAYOUTS if rule.name in ("address 2 modulo 16", "address 4 modulo 16")]
GAPS, LAST, REVERSED = (
    next(rule for rule in LAYOUTS if rule.name == name)
    for name in ("rows and matrices with gaps of their own", "channels last", "axes reversed")
)


def run(probe: Probe) -> None:
    for trial in ahead.trials(probe, chain.from_iterable(map(_with_ends, probe.all()))):
        with probe.judge(trial) as judge:
            judge.accurate(judge.call())
    if probe.coverage and probe.emulated:
        _on_one_multiprocessor(probe)


def _with_ends(trial: Trial) -> Iterator[Trial]:
    """The trial; where it has fewer indices than their axis has places, once more with indices of its ends."""
    yield trial
    indices = [(trial.tensors[t.name], t.domain) for t in trial.spec.tensors if t.name in trial.tensors]
    if any(isinstance(d, Index) and 0 < x.numel() < trial.call.axes[d.axis] for x, d in indices):
        yield trial.changed("indices of the ends of their axis", **neighbouring_trials.at_ends(trial))


def _on_one_multiprocessor(probe: Probe) -> None:
    """Where coverage is asked, of kernels whose blocks stay and walk on: what small cases give them to do there, the many
    multiprocessors of a GPU take at once. And of products in tiles that are larger where these are enough for all.

    There kernels are asked as well that tensors in less regular places alone have, in the costliest call that has them.
    """
    single, known = replace(cards.emulated(), processors=1), set[tuple[Any, ...]]()
    for trial in probe.all():
        usual = _launches(probe, trial)
        with cards.standing_for(single):
            other = _launches(probe, trial)
        known |= {_kernels(usual), _kernels(other)}
        if other != usual:
            _judge_on(single, probe, trial, "on one multiprocessor")
    moved = chain.from_iterable(map(_moved, sorted(probe.all(), key=_cost, reverse=True)))
    for trial in islice((one for one in filter(probe.able, moved) if _is_new(probe, one, single, known)), MOVED):
        _judge_on(single, probe, trial, f"{trial.note}, on one multiprocessor")


def _is_new(probe: Probe, trial: Trial, card: cards.Card, known: set[tuple[Any, ...]]) -> bool:
    """Whether a call has kernels on a card that no call before it had; these are noted."""
    with cards.standing_for(card):
        made = _kernels(_launches(probe, trial))
    new = made not in known
    known.add(made)
    return new


def _judge_on(card: cards.Card, probe: Probe, trial: Trial, note: str) -> None:
    """Launchers have forgotten the call, so that the judged one takes every branch."""
    with cards.standing_for(card), probe.judge(replace(trial, note=note)) as judge:
        judge.accurate(judge.call())


def _cost(trial: Trial) -> float:
    return trial.call.cost.flops + trial.call.cost.bytes


def _moved(trial: Trial) -> Iterator[Trial]:
    """The call with all tensors where no vector may begin; with the first one there alone, and with gaps; with images alone
    channels-last; and with the second tensor alone the other way round."""
    given = list(trial.free.items())
    further = LayoutRule(f"{GAPS.name}, one further on", _further)
    ways = (MISALIGNED, given), ([further], given[:1]), ([LAST], given[:1]), ([REVERSED], given[1:2])
    for rules, chosen in ways:
        placed = {name: [new for rule in rules if (new := rule.of(x)) is not None] for name, x in chosen}
        if made := {name: found[0] for name, found in placed.items() if found}:
            yield trial.elsewhere(f"{', '.join(made)}: {rules[0].name}", **made)


def _further(shape: tuple[int, ...], size: int) -> tuple[tuple[int, ...], int] | None:
    """As GAPS has it, from the second element of the memory on."""
    found = GAPS.strides(shape, size)
    return (tuple(found[0]), 1) if found else None


def _kernels(launches: list[Any]) -> tuple[Any, ...]:
    """As they are compiled, in the order of their launches."""
    return tuple(one[-1] for one in launches)


def _launches(probe: Probe, trial: Trial) -> list[Any]:
    """The kernels of a call, as they are compiled and launched; they are not run."""
    with probe.environment(), emulator.recorder(run=False) as launches:
        dispatch.call(trial.spec, trial.values, probe.label)
    return [(w.kernel, w.grid, w.block, w.shared, w.recipe and w.recipe.key) for w in launches]


CHECK = Check(run=run, column="accur", summary="within the error bound on every case, dtype and input distribution")
