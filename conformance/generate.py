"""Calls that nobody listed: drawn from the symbolic axes of a spec, around tile edges, as a variant declares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from kernelmux.conformance.trials import shown
from kernelmux.registry.cases import Case, generator
from kernelmux.registry.conditions import AtLeast, AtMost, Condition, Multiple, OneOf
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.spec import Axis, Call, OpSpec, Scalar, Tensor

# 0 and 1, primes, and both sides of the usual tile edges.
LENGTHS = (0, 1, 2, 3, 7, 13, 16, 17, 31, 32, 33, 63, 64, 65, 97, 127, 128, 129, 255, 257, 513, 1021)
TRIES = 100  # calls drawn per call wanted
FLOPS_PER_ELEMENT = 200  # of the largest tensor allowed; a square product of that size stays below
NEWEST = (9, 0)
LEADS = ((), (1,), (3,), (17,), (33,), (65,), (129,), (2, 5), (3, 1, 7), (2, 3, 2, 3), (0,), (2, 0))


def cases(
    spec: OpSpec, requires: tuple[Condition, ...], count: int, elements: int, seed: int
) -> Iterator[tuple[Case, list[torch.dtype]]]:
    """Up to `count` calls with at most `elements` elements per tensor, each with the dtypes that meet the conditions.

    The name of a case tells the whole call. One call in five meets none of them: a variant must refuse it and say why.
    """
    rng = generator(spec.name, spec.version, "shapes", seed)
    seen: set[str] = set()
    refused = 0
    for _ in range(count * TRIES):
        text = _text(spec, requires, rng)
        if text in seen or not _small(case := Case(text), elements):
            continue
        seen.add(text)
        made = {dtype: call for dtype in spec.dtypes if (call := hypothetical(spec, case, dtype))}
        if not made or next(iter(made.values())).cost.flops > FLOPS_PER_ELEMENT * elements:
            continue
        able = [dtype for dtype, call in made.items() if not any(c.check(call) for c in requires)]
        refused += not able
        if able or refused * 5 <= count:
            yield case, able
            count -= 1
            if count == 0:
                return


def _pick(options: tuple[Any, ...] | range | list[Any], rng: torch.Generator) -> Any:
    return options[int(torch.randint(len(options), (), generator=rng))]


def _lengths(letter: str, requires: tuple[Condition, ...]) -> list[int]:
    """The pool of an axis, narrowed to what the conditions on it allow."""
    pool = list(LENGTHS)
    for condition in (c for c in requires if getattr(c, "name", None) == letter):
        if isinstance(condition, OneOf):
            pool = list(condition.allowed)
        elif isinstance(condition, Multiple):
            pool = [n * condition.factor for n in (0, 1, 2, 3, 5, 9, 17)]
        elif isinstance(condition, AtLeast):
            pool = [n for n in (condition.minimum, *pool) if n >= condition.minimum]
        elif isinstance(condition, AtMost):
            pool = [n for n in pool if n <= condition.maximum]
    return pool


def _text(spec: OpSpec, requires: tuple[Condition, ...], rng: torch.Generator) -> str:
    """A random call in the language of cases."""
    letters = {d for t in spec.tensors for d in t.dims.split()} - {"..."}
    axes: dict[str, Any] = {d: _pick(_lengths(d, requires), rng) for d in sorted(letters)}
    axes["..."] = _lead(spec, rng)
    shapes = {
        t.name: tuple(n for d in t.dims.split() for n in (axes[d] if d == "..." else (axes[d],))) for t in spec.tensors
    }
    words = [f"{name}={shown(shape)}" for name, shape in shapes.items()]
    for item in spec.scalars:
        value = _scalar(item, shapes, rng)
        if value is not None:
            words.append(f"{item.name}={value}")
    return " ".join(words)


def _lead(spec: OpSpec, rng: torch.Generator) -> tuple[int, ...]:
    """The axes that "..." stands for; where a tensor has no others, the last of them is as varied as a named axis."""
    lead: tuple[int, ...] = _pick(LEADS, rng)
    if any(t.dims == "..." for t in spec.tensors):
        return (*lead, _pick(LENGTHS, rng))
    return lead


def _scalar(item: Scalar | Axis, shapes: dict[str, tuple[int, ...]], rng: torch.Generator) -> Any:
    """A value, or None to leave the default."""
    if isinstance(item, Axis):
        rank = len(shapes[item.of])
        return None if item.optional and _pick((0, 1, 2), rng) == 0 else _pick(range(-rank, rank), rng)
    if item.type is bool:
        return _pick((True, False), rng)
    if item.choices:
        return _pick(item.choices, rng)
    if item.type is int:
        lengths = [n for shape in shapes.values() for n in shape if n]
        return _pick((0, 1, *(n - 1 for n in lengths)), rng)
    return None


def _small(case: Case, elements: int) -> bool:
    return all(torch.Size(shape).numel() <= elements for shape in case.shapes.values())


def hypothetical(spec: OpSpec, case: Case, dtype: torch.dtype) -> Call | None:
    """The call on tensors without data on the newest GPU, or None if the spec refuses it."""
    arguments: list[Any] = []
    for item in spec.inputs:
        if isinstance(item, Tensor):
            arguments.append(torch.empty(case.shapes[item.name], dtype=dtype, device="meta"))
        else:
            arguments.append(case.scalars.get(item.name, item.default))
    try:
        return spec.bind(*arguments, device=torch.device("cpu"), capability=NEWEST)
    except ArgumentError:
        return None
