"""Shapes that no spec lists: zero, one, primes, both sides of tile edges, every rank, from the symbolic axes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernelmux.conformance import generate
from kernelmux.conformance.check import Check
from kernelmux.conformance.probe import Probe
from kernelmux.registry.cases import Case

# How many shapes, and elements per tensor, by tier; the emulator runs some 10^5 elements a second.
COUNTS = {"smoke": 3, "ci": 10, "full": 60, "huge": 200}
ELEMENTS = {"cpu": 2**13, "cuda": 2**22}


def run(probe: Probe) -> None:
    options, spec = probe.options, probe.spec
    count, elements = COUNTS[options.tier], ELEMENTS[options.device]
    made: list[tuple[Case, Sequence[torch.dtype]]] = list(
        generate.cases(spec, probe.implementation.requires, count, elements, options.seed)
    )
    made += [(case, spec.dtypes) for case in (*generate.corners(spec), *generate.mixed(spec))]
    made = [(case, able) for case, able in made if options.wants_case(case.name)]
    allowed = options.dtypes_of(spec)
    for turn, (case, able) in enumerate([*made, *((case, allowed) for case in options.own_cases(spec))]):
        usable = [d for d in able if d in allowed] or allowed
        for dtype in usable if options.cases else usable[turn % max(len(usable), 1) :][:1]:
            trial = probe.make(case, dtype)
            if probe.able(trial):
                with probe.judge(trial) as judge:
                    judge.accurate(judge.call())


CHECK = Check(
    run=run,
    column="shapes",
    summary="generated shapes: empty, 1, primes, tile edges +-1, every rank, every mix of forms",
)
