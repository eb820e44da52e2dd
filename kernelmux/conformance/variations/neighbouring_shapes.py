"""Shapes near those of cases that a variant can run, for one whose conditions a shape drawn at random hardly ever meets."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernelmux.conformance.inputs import generate
from kernelmux.conformance.variations import resize
from kernelmux.registry.cases import Case, generator
from kernelmux.registry.conditions import Condition
from kernelmux.registry.spec import OpSpec

BASES = 4  # cases to begin with, the smallest
STEPS = 400  # lengths that are tried


def cases(
    spec: OpSpec, requires: tuple[Condition, ...], count: int, elements: int, seed: int
) -> list[tuple[Case, list[torch.dtype]]]:
    """Up to `count` calls, each with the dtypes that meet the conditions; of at most `elements` elements per tensor.

    Every call is another one with another length of one axis, and the first ones are cases or workloads of the spec. Where
    none is that small, the smallest of these. Empty if the variant can run none of them on any GPU.
    """
    bases = [case for case in _smallest_first(spec) if generate.fitting(spec, requires, case)][:BASES]
    found = dict[str, tuple[Case, list[torch.dtype]]]()
    for case in _walk(spec, requires, bases, seed):
        if case.name not in found and generate.small(case, elements):
            found[case.name] = case, generate.fitting(spec, requires, case)
        if len(found) == count:
            break
    return list(found.values()) or [(case, generate.fitting(spec, requires, case)) for case in bases[:1]]


def _smallest_first(spec: OpSpec) -> list[Case]:
    """The cases and workloads of a spec that compute something, by the elements of their largest tensor."""
    sizes = ((max(map(_elements, case.shapes.values())), case) for case in (*spec.cases, *spec.workloads))
    return [case for size, case in sorted(sizes, key=lambda pair: pair[0]) if size]


def _elements(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


def _walk(spec: OpSpec, requires: tuple[Condition, ...], bases: list[Case], seed: int) -> Iterator[Case]:
    """Calls that the variant can run, each one axis away from an earlier one."""
    rng = generator(spec.name, spec.version, "neighbours", seed)
    known = list(bases)
    for _ in range(STEPS if bases else 0):
        base = generate.pick(known, rng)
        axis = generate.pick(resize.axes(spec, base), rng)
        length = generate.pick(generate.lengths_of(axis.letter, requires), rng)
        case = spec.case(resize.resized(spec, base, {axis: length}).text)
        if generate.fitting(spec, requires, case):
            known.append(case)
            yield case
