"""Calls at the boundaries of sizes that stand in a kernel's source: boundary value analysis of its constants.

For a constant c, axes of the call get c + 1, c, 2c, 1.5c and c - 1: each axis in turn, all together, and each pair. The
other axes stay short. What the operator refuses because another axis follows (the height of an output that of an image)
is tried with that axis changed as well. Where a condition of the variant allows multiples alone, the nearest one is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

import torch

from kernelmux.conformance.inputs import generate
from kernelmux.conformance.source_constants.constant import Constant
from kernelmux.conformance.variations import neighbouring_trials, resize
from kernelmux.conformance.variations.resize import AxisName
from kernelmux.registry.cases import Case
from kernelmux.registry.conditions import Condition, Multiple, OneOf
from kernelmux.registry.spec import Axis, Call, OpSpec

SHORT = (5, 3, 7, 2, 4)  # lengths of the other axes: different ones, so that no two are taken for each other
FOLLOWERS = 2  # other axes that may have to change with one


@dataclass(frozen=True)
class Offset:
    """A length near a constant: `times` c + `plus`. later: how long it waits behind the first one."""

    text: str
    times: float
    plus: int
    later: float

    def length(self, c: int) -> int:
        return int(self.times * c) + self.plus


OFFSETS = (
    Offset("c + 1", 1, 1, 0.0),
    Offset("c", 1, 0, 0.8),
    Offset("2c", 2, 0, 1.2),
    Offset("1.5c", 1.5, 0, 1.5),
    Offset("c - 1", 1, -1, 1.7),
)
TOGETHER, PAIRS, ANOTHER = 1.0, 1.6, 0.7  # how long all axes, two of them, and another kind of call wait
NAMED = 0.4  # how much sooner an axis comes that the condition names
RANKED = 0.35  # of a constant's rank: the first call of the next ones comes before all calls of one
PROBED = 257  # the length at which axes are compared by their costs


@dataclass(frozen=True)
class BoundaryCall:
    """A call whose axes have a length near a constant. base: what it is made of; priority: small ones come first."""

    constant: Constant
    offset: Offset
    axes: tuple[AxisName, ...]
    base: Case
    priority: float

    @property
    def length(self) -> int:
        return self.offset.length(self.constant.value)

    def note(self, lengths: dict[AxisName, int]) -> str:
        """Which axes have which length, and whence: "N = 1025 = c + 1, c = 1024 of softmax.py:41 `if n > 1024`"."""
        exact = all(lengths[axis] == self.length for axis in self.axes)
        near = f" = {self.offset.text}" if exact else f" next to {self.offset.text} = {self.length}"
        told = ", ".join(f"{axis} = {lengths[axis]}" for axis in self.axes)
        return f"{told}{near}, c = {self.constant.value} of {self.constant.place}"


def calls(spec: OpSpec, bases: Sequence[Case], constants: Sequence[Constant]) -> list[BoundaryCall]:
    """All calls, the most telling ones first; whether the operator takes them is not known yet."""
    found = [
        BoundaryCall(one, offset, axes, base, RANKED * one.rank + offset.later + later + ANOTHER * turn)
        for turn, base in enumerate(bases)
        for ordered in [_cheapest_first(spec, base)]
        for one in constants
        for axes, later in _groups(ordered, one)
        for offset in OFFSETS
    ]
    return sorted(found, key=lambda call: call.priority)


def _cheapest_first(spec: OpSpec, base: Case) -> list[AxisName]:
    """The axes by what a call costs in which they are long, about; of equal ones the last first."""
    axes = [*reversed(resize.axes(spec, base))]
    grown = {axis: renamed(spec, resize.resized(spec, base, {axis: PROBED})) for axis in axes}
    return sorted(axes, key=lambda axis: round(math.log2(min(cost(spec, grown[axis], spec.dtypes[0]), 2.0**60) + 1)))


def _groups(axes: list[AxisName], constant: Constant) -> Iterator[tuple[tuple[AxisName, ...], float]]:
    """Axes that get the length, and how long each group waits."""
    for turn, axis in enumerate(axes):
        named = NAMED if axis.letter.lower() in constant.names else 0.0
        yield (axis,), 0.1 * turn - named
    if len(axes) > 1:
        yield tuple(axes), TOGETHER
    if len(axes) > 2:
        yield from ((pair, PAIRS) for pair in combinations(axes, 2))


def bases(spec: OpSpec, requires: tuple[Condition, ...], cases: Sequence[Case], most: int) -> list[Case]:
    """A call of each of some kinds, with short axes.

    Where the operator takes any rank matrices come first; where it goes element by element, vectors, whose length is what
    a kernel sees of its tensors.
    """
    fitting = [case for case in cases if generate.fitting(spec, requires, case)]
    ranks = {case.name: max(len(shape) for shape in case.shapes.values()) for case in fitting}
    flat = all(t.flat for t in spec.tensors) and not any(isinstance(i, Axis) for i in spec.scalars)
    any_rank, usual = any(t.any_rank for t in spec.tensors), 1 if flat else 2
    chosen = sorted(fitting, key=lambda case: abs(ranks[case.name] - usual)) if any_rank else fitting
    return [shortened(spec, requires, case) for case in chosen[:most]]


def shortened(spec: OpSpec, requires: tuple[Condition, ...], case: Case) -> Case:
    """The case with each axis as short as in SHORT, as far as operator and variant take that."""
    for turn, axis in enumerate(resize.axes(spec, case)):
        made = renamed(spec, resize.resized(spec, case, {axis: SHORT[turn % len(SHORT)]}))
        if generate.fitting(spec, requires, made):
            case = made
    return case


def renamed(spec: OpSpec, case: Case) -> Case:
    """The case under its text as a name."""
    return spec.case(case.text) if case.name != case.text else case


def permitted(
    spec: OpSpec, requires: tuple[Condition, ...], call: BoundaryCall, elements: int
) -> tuple[Case, list[torch.dtype], dict[AxisName, int]] | None:
    """The case of a call, the dtypes in which operator and variant take it, and the lengths of its axes.

    None if there is none with at most `elements` elements in each tensor.
    """
    before = _lengths(spec, call.base)
    wanted = {axis: _allowed(axis, _target(spec, call, axis), call.offset.plus, requires) for axis in call.axes}
    if any(n is None or n < 1 for n in wanted.values()):
        return None
    lengths = {axis: n for axis, n in wanted.items() if n is not None}
    for more in ({}, *_following(before, lengths)):
        resized = resize.resized(spec, call.base, {**lengths, **more})
        if not generate.small(resized, elements):
            continue
        for made in dict.fromkeys((resized, resize.fitted(spec, resized))):  # sizes that are scalars follow
            case = renamed(spec, made)
            if dtypes := generate.fitting(spec, requires, case):
                return case, dtypes, {**before, **lengths, **more}
    return None


def _target(spec: OpSpec, call: BoundaryCall, axis: AxisName) -> int:
    """The length of an axis; of a constant that counts elements what gives the largest tensor with the axis so many."""
    if not call.constant.counts_elements or len(call.axes) > 1:
        return call.length
    shapes = call.base.shapes
    named = {t: [*zip(resize.names(spec, call.base, t), shape, strict=True)] for t, shape in shapes.items()}
    having = [t for t, axes in named.items() if any(name == axis for name, _ in axes)]
    largest = max(having, key=lambda t: math.prod(shapes[t]), default=None)
    others = math.prod(n for name, n in named[largest] if name != axis) if largest else 1
    return -(-call.length // max(others, 1))


def _lengths(spec: OpSpec, case: Case) -> dict[AxisName, int]:
    shapes = case.shapes
    return {a: n for t in shapes for a, n in zip(resize.names(spec, case, t), shapes[t], strict=True)}


def _allowed(axis: AxisName, length: int, plus: int, requires: tuple[Condition, ...]) -> int | None:
    """The length, or the nearest multiple that a condition on the axis allows, on the same side."""
    for condition in (c for c in requires if getattr(c, "name", None) == axis.letter):
        if isinstance(condition, OneOf):
            return length if length in condition.allowed else None
        if isinstance(condition, Multiple) and length % condition.factor:
            length = length // condition.factor * condition.factor + (condition.factor if plus > 0 else 0)
    return length


def _following(before: dict[AxisName, int], lengths: dict[AxisName, int]) -> Iterator[dict[AxisName, int]]:
    """Changes of other axes that may have to go with these: by as much, by half as much, or in proportion.

    The height of an output grows with that of an image, heads of queries with the groups of those of keys.
    """
    (axis, length), *rest = lengths.items()
    if rest:
        return
    old, grown = before[axis], length - before[axis]
    others = [name for name in before if name != axis]
    for count in range(1, FOLLOWERS + 1):
        for names in permutations(others, count) if count == 1 else combinations(others, count):
            yield {name: before[name] + grown for name in names}
            if grown % 2 == 0 and count == 1:
                yield {name: before[name] + grown // 2 for name in names}
            if count == 1:
                yield {name: before[name] + 2 * grown for name in names}
                if old and before[names[0]] * length % old == 0:
                    yield {name: before[name] * length // old for name in names}


def cost(spec: OpSpec, case: Case, dtype: torch.dtype) -> float:
    """What a call costs, about: operations, and elements that are moved."""
    call: Call | None = generate.permitted(spec, case, dtype)
    return neighbouring_trials.work(call) + call.cost.bytes / dtype.itemsize if call else math.inf
