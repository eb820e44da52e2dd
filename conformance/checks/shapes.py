"""Shapes that nobody listed: zero and one, primes, both sides of tile edges, every rank, drawn from the symbolic axes."""

from __future__ import annotations

from kernelmux.conformance import generate
from kernelmux.conformance.check import Check
from kernelmux.conformance.probe import Probe

# How many shapes, and elements per tensor, by tier; the emulator runs some 10^5 elements a second.
COUNTS = {"smoke": 3, "ci": 10, "full": 60, "huge": 200}
ELEMENTS = {"cpu": 2**13, "cuda": 2**22}


def run(probe: Probe) -> None:
    options, spec = probe.options, probe.spec
    count, elements = COUNTS[options.tier], ELEMENTS[options.device]
    made = generate.cases(spec, probe.implementation.requires, count, elements, options.seed)
    allowed = options.dtypes_of(spec)
    for turn, case in enumerate(made):
        if not options.wants_case(case.name) or not allowed:
            continue
        for dtype in allowed if options.cases else [allowed[turn % len(allowed)]]:
            trial = probe.make(case, dtype)
            if probe.able(trial):
                with probe.judge(trial) as judge:
                    judge.accurate(judge.call())


CHECK = Check(run=run, column="shapes", summary="generated shapes: empty, 1, primes, tile edges +-1, every rank")
