"""Sizes from the source: the calls on both sides of every constant of a kernel and its launcher.

Kernels take other paths from some size on, and their tiles end at some multiple. Cases that were written without a look at
the source may reach neither. So the integers of the launcher, of its kernels and of their configurations are read
(`source_constants`), and calls are made whose axes are c + 1, c, 2c, 1.5c and c - 1 long (`boundary_shapes`): with random
inputs, with large numbers at the edges, and with special numbers there (`edge_values`). The most specific constants come
first, until the time is used up; a remark says how many were asked.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import torch

from kernelmux import emulator
from kernelmux.candidate import implementation as candidate
from kernelmux.conformance.check import Check
from kernelmux.conformance.inputs import dtype_rotation, edge_values, generate, special_numbers
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.judging import asked_less
from kernelmux.conformance.judging.probe import Probe
from kernelmux.conformance.source_constants import reader, untrusted
from kernelmux.conformance.source_constants.constant import LIMIT, Constant, usable
from kernelmux.conformance.variations import boundary_shapes, partial_emulation, resize
from kernelmux.conformance.variations.boundary_shapes import BoundaryCall
from kernelmux.conformance.variations.resize import AxisName
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.cases import Case
from kernelmux.registry.conditions import AtLeast, AtMost

# Seconds of processor time and calls of one variant, and elements of a tensor, by tier. The emulator runs some 10^5
# elements a second, and each length may be a kernel of its own that has to be compiled.
SECONDS = {"smoke": 2.0, "ci": 5.0, "full": 60.0, "huge": 600.0}
SHARED_OUT = 2.5  # where variants of an operator, which read many constants of one source, share the calls out
CALLS = {"smoke": 6, "ci": 32, "full": 600, "huge": 6000}
ELEMENTS = {"smoke": 2**14, "ci": 2**17, "full": 2**19, "huge": 2**22}
NOT_EMULATED = 2**22  # elements, at least
KINDS_OF_CALLS = {"smoke": 1, "ci": 2, "full": 4, "huge": 8}  # ranks, places of an axis
LOOKED_AT = 40  # calls that are made up for one that is asked, at most
RATES = {True: 2.0**20, False: 2.0**24}  # operations in a second, about: emulated or not, until some are measured


def run(probe: Probe) -> None:
    found = constants(probe)
    if not found:
        probe.skip_all("its source names no size")
        return
    spec, requires = probe.spec, probe.implementation.requires
    cases = [case for case in (*probe.kinds(16), *probe.small_cases(16)) if case.inputs == "normal"]
    bases = boundary_shapes.bases(spec, requires, cases, KINDS_OF_CALLS[probe.options.tier])
    if not bases:
        probe.skip_all("no case fits its conditions")
        return
    calls = boundary_shapes.calls(spec, bases, found)
    if probe.options.cases:
        _ask_named(probe, calls)
        return
    asked = _ask(probe, calls)
    if probe.records:
        told = ", ".join(str(c.value) for c in found if c.value not in asked)
        probe.records[-1].remarks.append(
            f"{len(asked)} of {len(found)} constants of the source were asked{f'; not asked: {told}' if told else ''}"
        )
    else:
        probe.skip_all("no call at a size of its source is small enough, or meets its conditions")


def constants(probe: Probe) -> list[Constant]:
    """The constants of the variant: of its source, its conditions and its configurations."""
    implementation = probe.implementation
    path = (probe.home or registered.folder(probe.backend) or reader.NOWHERE) / probe.spec.name
    space = implementation.space.values if implementation.space else {}
    declared = reader.declared(space, path)
    for condition in implementation.requires:
        if isinstance(condition, AtMost | AtLeast):
            size = condition.maximum if isinstance(condition, AtMost) else condition.minimum
            declared += reader.declared({condition.name: (size,)}, path, LIMIT)
    if process := candidate.process_of(implementation.fn):  # its file is text, and is not imported here
        return usable([*declared, *untrusted.constants(process.path, process.begins)])
    return reader.constants(implementation.fn, probe.home, declared)


class _Budget:
    """The processor time of one variant, and what calls cost: those that would not end within it are not made."""

    def __init__(self, probe: Probe) -> None:
        self.seconds = SHARED_OUT if asked_less.shares(probe) else SECONDS[probe.options.tier]
        self.begin, self.calls = time.process_time(), 0
        self.rate = RATES[probe.emulated]
        self.too_long: dict[tuple[AxisName, ...], float] = {}  # costs of calls that were given up

    @property
    def left(self) -> float:
        return self.seconds - (time.process_time() - self.begin)

    def affords(self, call: BoundaryCall, cost: float) -> bool:
        return cost / self.rate < self.left and cost < self.too_long.get(call.axes, math.inf)

    def spent(self, call: BoundaryCall, cost: float, seconds: float, ended: bool) -> None:
        """Note a call; the rate follows what was seen, not all at once: kernels are compiled as well."""
        self.calls += 1
        self.rate = max(self.rate / 2, min(self.rate * 2, cost / max(seconds, 1e-3)))
        if not ended:
            self.too_long[call.axes] = cost


def _ask(probe: Probe, calls: list[BoundaryCall]) -> set[int]:
    """Ask calls until the time is used up; the constants that were asked."""
    options, tier = probe.options, probe.options.tier
    elements = ELEMENTS[tier] if probe.emulated else max(ELEMENTS[tier], NOT_EMULATED)
    budget, asked, seen, patience = _Budget(probe), set[int](), set[str](), probe.patience
    for call in calls[: CALLS[tier] * LOOKED_AT]:
        if budget.left <= 0 or budget.calls >= CALLS[tier]:
            break
        made = boundary_shapes.permitted(probe.spec, probe.implementation.requires, call, elements)
        if made is None or made[0].text in seen:
            asked |= {call.constant.value} if made else set()
            continue
        case, able, lengths = made
        turn = budget.calls
        order = dtype_rotation.ordered([*dtype_rotation.both(able, options.dtypes_of(probe.spec))], turn + options.seed)
        if not order or not budget.affords(call, cost := boundary_shapes.cost(probe.spec, case, order[0])):
            continue
        seen.add(case.text)
        asked.add(call.constant.value)
        probe.patience, started = min(patience, max(budget.left, budget.seconds / 2)), time.process_time()
        ended = _judge(probe, call, _varied(probe, case, order[0], turn), order[0], lengths, turn)
        budget.spent(call, cost, time.process_time() - started, ended)
    return asked


def _ask_named(probe: Probe, calls: list[BoundaryCall]) -> None:
    """The calls that a command names, as they were asked; those that stand at no boundary with random inputs."""
    for case in probe.options.own_cases(probe.spec):
        call, lengths = _origin(probe, calls, case)
        for dtype in probe.options.dtypes_of(probe.spec, case):
            if call:
                _judge(probe, call, case, dtype, lengths)
            elif probe.able(trial := probe.make(case, dtype)):
                with probe.judge(trial) as judge:
                    judge.accurate(judge.call())


def _origin(probe: Probe, calls: list[BoundaryCall], case: Case) -> tuple[BoundaryCall | None, dict[AxisName, int]]:
    """The first call that makes tensors of these shapes."""
    for call in calls:
        made = boundary_shapes.permitted(probe.spec, probe.implementation.requires, call, ELEMENTS["huge"])
        if made and made[0].shapes == case.shapes:
            return call, made[2]
    return None, {}


def _varied(probe: Probe, case: Case, dtype: torch.dtype, turn: int) -> Case:
    """Every third call takes other values of the scalars that have a few: each may be a kernel of its own."""
    if turn % 3 != 2:
        return case
    pools = {i.name: generate.pool(i) for i in generate.choices(probe.spec)}
    values = {name: pool[turn // 3 % len(pool)] for name, pool in pools.items() if pool}
    made = boundary_shapes.renamed(probe.spec, generate.together(probe.spec, case, values)) if values else case
    able = generate.fitting(probe.spec, probe.implementation.requires, made)
    return made if dtype in able else case


def _judge(
    probe: Probe,
    call: BoundaryCall,
    case: Case,
    dtype: torch.dtype,
    lengths: dict[AxisName, int],
    turn: int | None = None,
) -> bool:
    """The call with random inputs, and with others in turn, or with all of them; whether the emulator ended each."""
    plain = probe.make(case, dtype)
    if probe.reasons(plain):
        return True
    special = special_numbers.defined(plain) and not registered.composite(probe.backend)
    for trial in _trials(plain, call, case, lengths, turn, special):
        with probe.judge(trial) as judge:
            try:
                outputs = judge.call()
            except emulator.EmulatorError as error:
                if error.kind != "time limit" or probe.options.tier in ("full", "huge"):
                    raise
                partial_emulation.skipped(judge, f"emulated: longer than {probe.patience:g} s; --tier full asks it")
                return False
            judge.well_formed(outputs)
            judge.accurate(special_numbers.within_range(trial, outputs))
    return True


def _trials(
    plain: Trial, call: BoundaryCall, case: Case, lengths: dict[AxisName, int], turn: int | None, special: bool
) -> Iterator[Trial]:
    """special: with special numbers too; of torch's own operators `special_values` asks these."""
    note, c = call.note(lengths), call.constant.value
    places = {name: resize.names(plain.spec, case, name) for name in plain.tensors}
    grown = {n: max((i for i, axis in enumerate(axes) if axis in call.axes), default=-1) for n, axes in places.items()}
    grown = {name: dimension for name, dimension in grown.items() if dimension >= 0}
    begin = boundary_shapes.OFFSETS.index(call.offset)  # a number is at another place in each call of a constant
    every = turn is None or begin == 0  # what is just beyond c is asked with all inputs
    yield plain.changed(note)
    if (every or (turn or 0) % 3 == 0) and any(name in plain.free for name in grown):
        yield edge_values.large(plain, grown, c, begin, note)
    for number, names in enumerate(edge_values.APART):
        if special and (every or (turn or 0) % 3 == number + 1):
            kept = [name for name in names if not special_numbers.undefined(plain, name)]
            if made := edge_values.special(plain, grown, c, begin, note, kept):
                yield made


CHECK = Check(
    run=run,
    column="sizes",
    summary="sizes around the constants of its source: c - 1, c, c + 1, 1.5c and 2c, on each axis, on pairs and on all",
)
