"""Shapes that no spec lists: zero, one, primes, both sides of tile edges, regular lengths, every rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from kernelmux.conformance.check import Check
from kernelmux.conformance.inputs import generate
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.judging import ahead
from kernelmux.conformance.judging.probe import Probe
from kernelmux.conformance.variations import neighbouring_shapes, neighbouring_trials
from kernelmux.registry.cases import Case

# How many shapes, and elements per tensor, by tier; the emulator runs some 10^5 elements a second.
COUNTS = {"smoke": 3, "ci": 10, "full": 60, "huge": 200}
ELEMENTS = {"cpu": 2**13, "cuda": 2**22}
WORK = 2**23  # operations of a call, where a run is brief
REGULAR = {"smoke": 0, "ci": 2, "full": 20, "huge": 40}  # calls with an axis of 1,022 to 4,096


def run(probe: Probe) -> None:
    for trial in ahead.trials(probe, filter(probe.able, _trials(probe))):
        with probe.judge(trial) as judge:
            judge.accurate(judge.call())


def _trials(probe: Probe) -> Iterator[Trial]:
    options, spec = probe.options, probe.spec
    made = [(case, able) for case, able in _drawn_shapes(probe) if options.wants_case(case.name)]
    allowed = options.dtypes_of(spec)
    for turn, (case, able) in enumerate([*made, *((case, allowed) for case in options.own_cases(spec))]):
        usable = [d for d in able if d in allowed] if able else allowed
        for dtype in usable if options.cases else usable[turn % max(len(usable), 1) :][:1]:
            yield probe.make(case, dtype)


def _drawn_shapes(probe: Probe) -> list[tuple[Case, Sequence[torch.dtype]]]:
    """The shapes of a run, each with the dtypes that the variant takes; beside its own cases if chance finds it none."""
    spec, requires = probe.spec, probe.implementation.requires
    asked = requires, COUNTS[probe.options.tier], ELEMENTS[probe.options.device], probe.options.seed
    drawn = list(generate.cases(spec, *asked))
    regular = generate.regular(spec, requires, REGULAR[probe.options.tier], *asked[2:])
    near = [] if any(able for _, able in drawn) else neighbouring_shapes.cases(spec, *asked)
    return [
        *(pair for pair in (*drawn, *near, *regular) if not probe.brief or _quick(probe, *pair)),
        *((case, spec.dtypes) for case in (*generate.corners(spec), *generate.mixed(spec))),
    ]


def _quick(probe: Probe, case: Case, able: Sequence[torch.dtype]) -> bool:
    """Whether the emulator is done with such a call within some two seconds."""
    calls = (call for dtype in able if (call := generate.permitted(probe.spec, case, dtype)))
    return all(neighbouring_trials.work(call) <= WORK for call in calls)


CHECK = Check(
    run=run,
    column="shapes",
    summary="generated shapes: empty, 1, primes, tile edges +-1, every rank, every mix of forms",
)
