"""Calls that no spec lists: drawn from the symbolic axes of a spec, around tile edges, as a variant declares."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations, product
from typing import Any

import torch

from kernelmux.conformance.inputs.trials import shown
from kernelmux.registry.cases import CHANNELS_LAST, Case, generator, written
from kernelmux.registry.conditions import AtLeast, AtMost, Condition, Multiple, OneOf
from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.spec import REQUIRED, Axis, Call, OpSpec, Scalar, signature
from kernelmux.registry.spec.binding import expected
from kernelmux.registry.spec.signature import Form

# 0 and 1, primes, and both sides of the usual tile edges.
LENGTHS = (0, 1, 2, 3, 7, 13, 16, 17, 31, 32, 33, 63, 64, 65, 97, 127, 128, 129, 255, 257, 513, 1021)
# Of one axis, the others short: both sides of a block of 1024, multiples of 512, and what lies between.
REGULAR = (1024, 2048, 1536, 4096, 1025, 1022, 3072, 1023, 2560, 1100)
FEW = (1, 2, 3, 4)  # for the axes that stay short where a call has many
SIDES, SHORT_SIDES = (24, 100, 200), (4, 2, 6, 3, 5, 7)  # of a call in a combination of forms, in every order
MANY = 4  # axes from which on only two of a call are long
TRIES = 400  # calls drawn per call wanted
KINDS = ("equal", "one", "", "")  # of the axes of a call, in turn: equal ones, one of length one, any
CORNERS = ((4, 4, 4), (2, 1, 3), (2, 0, 3), (2, 3, 4, 5), (2, 3, 2, 2, 3))
EMPTY = 10  # one call in so many may compute nothing
FLOPS_PER_ELEMENT = 200  # of the largest tensor allowed; a square product of that size stays below
NEWEST = (9, 0)
LEADS = ((), (1,), (3,), (17,), (33,), (65,), (129,), (2, 5), (3, 1, 7), (2, 3, 2, 3), (0,), (2, 0))
# Numbers for a scalar without a range: zero, both signs, neither powers of two nor short in binary, and one so large
# that an exponential of it overflows unless the maximum is taken with its sign.
NUMBERS = (0.0, -0.7, 1.7, 0.3, -40.0)
NEARLY = 2.0**-11  # of a number, by which another one is nearly equal


def cases(
    spec: OpSpec, requires: tuple[Condition, ...], count: int, elements: int, seed: int
) -> Iterator[tuple[Case, list[torch.dtype]]]:
    """Up to `count` calls with at most `elements` elements per tensor, each with the dtypes that meet the conditions.

    The name of a case tells the whole call. One call in five meets none of them: a variant must refuse it and say why.
    One in ten computes nothing (`EMPTY`).
    """
    rng = generator(spec.name, spec.version, "shapes", seed)
    seen: set[str] = set()
    refused, empty, total = 0, 0, count
    for _ in range(total * TRIES):
        text = _text(spec, requires, KINDS[(total - count) % len(KINDS)], rng)
        if text in seen or not small(case := spec.case(text), elements):
            continue
        seen.add(text)
        nothing = any(0 in shape for shape in case.shapes.values())
        if nothing and (empty + 1) * EMPTY > total:
            continue
        leading = case.parsed[2].get(spec.leading.name)
        allowed = spec.dtypes if leading is None else (leading,)
        made = {dtype: call for dtype in allowed if (call := permitted(spec, case, dtype))}
        if not made or next(iter(made.values())).cost.flops > FLOPS_PER_ELEMENT * elements:
            continue
        able = [dtype for dtype, call in made.items() if not any(c.check(call) for c in requires)]
        refused += not able
        if able or refused * 5 <= count:
            yield case, able
            empty += nothing
            count -= 1
            if count == 0:
                return


def regular(
    spec: OpSpec, requires: tuple[Condition, ...], count: int, elements: int, seed: int
) -> list[tuple[Case, list[torch.dtype]]]:
    """Up to `count` calls with one axis of `REGULAR`, axes and lengths in turn, the last axes first, and their dtypes."""
    flat = any(t.flat for t in spec.tensors)
    names = [*reversed(letters(spec)), *(["..."] if any(t.any_rank for t in spec.tensors) else [])]
    found: list[tuple[Case, list[torch.dtype]]] = []
    for turn in range(len(REGULAR) * len(names)):
        name, long = names[turn % len(names)], REGULAR[(turn + turn // len(names) + seed) % len(REGULAR)]
        short = 1 + (turn + seed) % 3
        axes = {d: next((n for n in lengths_of(d, requires) if n > short), short) for d in letters(spec)}
        lead = (short, long) if flat else (long,) if name == "..." else (short,)
        made = refitted(spec, case_of_lengths(spec, axes if name == "..." else {**axes, name: long}, lead))
        calls = {d: call for d in spec.dtypes if (call := permitted(spec, made, d))}
        able = [d for d, call in calls.items() if not any(c.check(call) for c in requires)]
        quick = all(call.cost.flops <= FLOPS_PER_ELEMENT * elements for call in calls.values())
        if able and quick and small(made, elements):
            found.append((made, able))
        if len(found) == count:
            break
    return found


def pool(item: Scalar) -> list[Any]:
    """Values of a scalar other than its default: those that the spec names, its choices, its range's ends, NUMBERS."""
    values: list[Any] = [*item.trials, *item.choices]
    if item.type is bool:
        values += [True, False]
    elif item.type is float:
        low, high = item.range or (NUMBERS[-1], -NUMBERS[-1])
        values += [low, high, low + 0.3 * (high - low)] if item.range else NUMBERS
        values = [float(v) for v in values if v is not None and not expected(item, v)]
    return [v for i, v in enumerate(values) if v != item.default and v not in values[:i]]


def ends(item: Scalar) -> list[int]:
    """The smallest and the largest value of an integer, beside those of its pool."""
    if item.type is not int or item.range is None or item.length:
        return []
    found = (int(item.range[0]), int(item.range[1]))
    return [v for v in found if v not in (item.default, *pool(item)) and not expected(item, v)]


def near(item: Scalar, seed: int) -> Iterator[tuple[float, float]]:
    """Pairs of numbers of as many digits as fit that are nearly equal: not far from values of the pool."""
    rng = generator("near", item.name, seed)
    for base in sorted((v for v in pool(item) if 1e-3 <= abs(v) <= 40), key=lambda v: abs(math.log(abs(v)))):
        one = base * (1.1 + 0.2 * float(torch.rand((), generator=rng, dtype=torch.float64)))
        if not expected(item, one) and not expected(item, one * (1 + NEARLY)):
            yield one, one * (1 + NEARLY)


def choices(spec: OpSpec) -> list[Scalar]:
    """The scalars that have a few values, each of which may well be a kernel of its own."""
    return [i for i in spec.scalars if isinstance(i, Scalar) and i.type in (bool, str)]


def with_scalars(case: Case, values: dict[str, Any]) -> Case:
    """The case with other values of some scalars (or of "inputs"), its distribution spelt out with it."""
    tensors, scalars, _ = case.parsed
    scalars = {"inputs": case.inputs, **scalars, **values}
    kept = {*tensors, CHANNELS_LAST}
    words = [word for word in case.text.replace(",", " ").split() if word.partition("=")[0] in kept]
    words += [f"{name}={written(value)}" for name, value in scalars.items() if name != "inputs"]
    inputs = scalars["inputs"]
    words += [f"inputs={inputs}"] if inputs != "normal" else []
    return replace(case, text=" ".join(words), inputs="normal")


def together(spec: OpSpec, case: Case, values: dict[str, Any]) -> Case:
    """The case with these values of optional scalars, without those that exclude one another."""
    made = with_scalars(case, values)
    fits = {i.name: i.fit for i in spec.scalars if isinstance(i, Scalar) and i.optional and i.fit and i.name in values}
    changed = {name: fit(made.shapes, made.scalars) for name, fit in fits.items()}
    return with_scalars(made, changed) if changed else made


def refitted(spec: OpSpec, case: Case) -> Case:
    """The case with those scalars that follow from shapes as its shapes have it; itself if it has none."""
    fits = {i.name: i.fit for i in spec.scalars if isinstance(i, Scalar) and i.fit and i.name in case.scalars}
    scalars = {i.name: i.default for i in spec.scalars if i.default is not REQUIRED} | case.scalars
    return with_scalars(case, {n: fit(case.shapes, scalars) for n, fit in fits.items()}) if fits else case


def varied(spec: OpSpec, case: Case, turn: int) -> Case:
    """The case with other values of the scalars that it leaves to their defaults."""
    pools = {i.name: pool(i) for i in spec.scalars if isinstance(i, Scalar) and i.name not in case.scalars}
    return together(spec, case, {name: values[turn % len(values)] for name, values in pools.items() if values})


def case_of_lengths(spec: OpSpec, axes: dict[str, int], lead: tuple[int, ...]) -> Case:
    """The case with these lengths of the named axes and of "...", every tensor, scalars at their defaults or `_least`."""
    return _with_least(spec, _shapes(spec, {**axes, "...": lead}, lambda forms: forms[0]))


def _with_least(spec: OpSpec, shapes: dict[str, tuple[int, ...]]) -> Case:
    words = [f"{name}={shown(shape)}" for name, shape in shapes.items()]
    scalars = (f"{i.name}={written(_least(i))}" for i in spec.scalars if i.default is REQUIRED)
    return spec.case(" ".join([*words, *scalars]))


def _least(item: Scalar | Axis) -> Any:
    """0 for a scalar that must be given, or where that is not allowed the first value that the spec names."""
    if isinstance(item, Axis) or not item.range or not item.trials or item.range[0] <= 0 <= item.range[1]:
        return 0
    return item.trials[0]


def kind(spec: OpSpec, case: Case) -> tuple[object, ...]:
    """What kernels often tell calls apart by: ranks, images that lie channels-last, an axis that is the first or last."""
    found: list[object] = [*(len(shape) for shape in case.shapes.values()), case.channels_last]
    for item in (i for i in spec.scalars if isinstance(i, Axis)):
        axis, rank = case.scalars.get(item.name, item.default), len(case.shapes[item.of])
        place = None if axis is None else axis % max(rank, 1)
        found.append(place if place in (None, 0) else place == rank - 1)
    return tuple(found)


COMPACT = (2, 3, 4, 5, 7)  # lengths of its axes, but for those that conditions fix


def compact(spec: OpSpec, requires: tuple[Condition, ...]) -> Case | None:
    """A small call without an axis of length one, of as many different lengths as the spec and the conditions allow."""
    names = letters(spec)
    allowed = [lengths_of(d, requires) for d in names]
    pools = [COMPACT if lengths == list(LENGTHS) else [n for n in lengths if n > 1][:1] for lengths in allowed]
    made = sorted(product(*pools), key=lambda lengths: -len(set(lengths)))
    for case in (case_of_lengths(spec, dict(zip(names, lengths, strict=True)), ()) for lengths in made):
        if permitted(spec, case, spec.dtypes[0]):
            return case
    return None


def letters(spec: OpSpec) -> list[str]:
    """The named axes of the tensors of a spec, in alphabetical order."""
    return sorted({d for t in spec.tensors for d in t.letters})


def _shapes(
    spec: OpSpec, axes: dict[str, Any], choose: Callable[[tuple[Form | None, ...]], Form | None]
) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors; `choose` takes one of the forms that each may have, None for one that is left out."""
    chosen = {t.name: choose((*t.forms, None) if t.optional else t.forms) for t in spec.tensors}
    return {
        name: tuple(n for d in form for n in signature.lengths(d, axes))
        for name, form in chosen.items()
        if form is not None
    }


def pick(options: tuple[Any, ...] | range | list[Any], rng: torch.Generator) -> Any:
    """One of these, drawn at random."""
    return options[int(torch.randint(len(options), (), generator=rng))]


def lengths_of(letter: str, requires: tuple[Condition, ...]) -> list[int]:
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


def corners(spec: OpSpec) -> list[Case]:
    """Axes that are equal, of length one or 0, or many, for operators of any rank; along the first, a middle, the last.

    Scalars with choices take each of them; numbers are given in every second call. What the spec refuses is left out.
    """
    if not any(t.any_rank for t in spec.tensors):
        return []
    axis = next((i for i in spec.scalars if isinstance(i, Axis)), None)
    found: list[Case] = []
    for corner in CORNERS:
        lead = corner if any(t.flat for t in spec.tensors) else corner[:-1]
        base = case_of_lengths(spec, dict.fromkeys(letters(spec), corner[-1]), lead)
        places = [0, len(corner) // 2, len(corner) - 1, *([None] if axis and axis.optional else [])]
        along = [with_scalars(base, {axis.name: place}) for place in places] if axis else [base]
        for case in along:
            made = [with_scalars(case, values) for values in _settings(spec, len(found))]
            found += [case for case in made if permitted(spec, case, spec.dtypes[0])]
    return found


def mixed(spec: OpSpec) -> Iterator[Case]:
    """A call in each combination of forms that no case has, where two tensors or more have several: scales, for instance.

    Axes that are in such forms alone, as blocks that share a scale, have to go with the others; drawn, they hardly ever do.
    """
    several = [t for t in spec.tensors if len(t.forms) > 1]
    kept = sorted({d for t in spec.tensors if len(t.forms) == 1 for d in t.letters})
    if len(several) < 2 or not kept:
        return
    sides = SIDES if len(kept) <= len(SIDES) else SHORT_SIDES
    seen = {_combination(spec, case) for case in (*spec.cases, *spec.workloads)}
    for turn, forms in enumerate(product(*((*t.forms, None) if t.optional else t.forms for t in several))):
        chosen = dict(zip((t.name for t in several), forms, strict=True))
        orders = list(permutations(sides[: len(kept)]))
        for lengths in (*orders[turn % len(orders) :], *orders[: turn % len(orders)]):
            for case in _of_forms(spec, dict(zip(kept, lengths, strict=True)), chosen):
                if (found := _combination(spec, case)) not in seen:
                    seen.add(found)
                    yield case


def _of_forms(spec: OpSpec, axes: dict[str, int], chosen: dict[str, Form | None]) -> Iterator[Case]:
    """The calls with these axes and forms whose other axes have a short length, or half of another axis."""
    own = [d for d in letters(spec) if d not in axes and any(d in form for form in chosen.values() if form)]
    for lengths in product(dict.fromkeys((*FEW, *(n // 2 for n in axes.values()))), repeat=len(own)):
        every = {**axes, **dict(zip(own, lengths, strict=True)), "...": ()}
        forms = ((t.name, chosen.get(t.name, t.forms[0])) for t in spec.tensors)
        shapes = {
            n: tuple(m for d in form for m in signature.lengths(d, every)) for n, form in forms if form is not None
        }
        case = _with_least(spec, shapes)
        if permitted(spec, case, spec.dtypes[0]):
            yield case


def _combination(spec: OpSpec, case: Case) -> tuple[object, ...]:
    """Which of its axes have length one, per tensor of several forms, and which axes it has at all."""
    several = [case.shapes.get(t.name) for t in spec.tensors if len(t.forms) > 1]
    call = permitted(spec, case, (case.dtypes or spec.dtypes)[0])
    ones = tuple(None if shape is None else tuple(n == 1 for n in shape) for shape in several)
    return (ones, *sorted(call.axes.keys() & letters(spec) if call else ()))


def _settings(spec: OpSpec, turn: int) -> list[dict[str, Any]]:
    """Scalars at their defaults and at their other choices; of numbers one value, or the default, in turn."""
    scalars = [i for i in spec.scalars if isinstance(i, Scalar) and i.default is not REQUIRED]
    choices = {i.name: pool(i) for i in scalars if i.type is not float}
    numbers = {i.name: pool(i)[turn // 2 % len(pool(i))] for i in scalars if i.type is float and turn % 2}
    return [numbers, *({**numbers, name: value} for name, values in choices.items() for value in values)]


def _text(spec: OpSpec, requires: tuple[Condition, ...], kind: str, rng: torch.Generator) -> str:
    """A random call in the language of cases."""
    shapes = _shapes(spec, _axes(spec, requires, kind, rng), lambda forms: pick(forms, rng) if forms[1:] else forms[0])
    together = pick(spec.formats, rng) if spec.formats else {}
    kinds = {name: f":{SHORT[dtype]}" for name, dtype in together.items()}
    words = [f"{name}={shown(shape)}{kinds.get(name, '')}" for name, shape in shapes.items()]
    drawn = {item.name: _scalar(item, shapes, rng) for item in spec.scalars}
    drawn |= {i.name: i.fit(shapes, drawn) for i in spec.scalars if isinstance(i, Scalar) and i.fit}
    words += [f"{name}={written(value)}" for name, value in drawn.items() if value is not None]
    return " ".join(words)


def _axes(spec: OpSpec, requires: tuple[Condition, ...], kind: str, rng: torch.Generator) -> dict[str, Any]:
    """A length per axis. What finds an axis by its length, or drops those of length one, shows in `KINDS` alone."""
    names = letters(spec)
    pools = {d: lengths_of(d, requires) for d in names}
    if len(names) >= MANY:
        long = {pick(names, rng) for _ in range(2)}
        pools = {d: p if d in long else [n for n in FEW if n in p] or p for d, p in pools.items()}
    axes: dict[str, Any] = {d: pick(pools[d], rng) for d in names}
    axes["..."] = _lead(spec, rng)
    if kind == "equal":
        length = pick([n for p in pools.values() for n in p] or list(LENGTHS), rng)
        axes |= {d: length for d in names if length in pools[d]}
        axes["..."] = tuple(length for _ in axes["..."])
    elif kind == "one":
        place = pick([d for d in names if 1 in pools[d]] or ["..."], rng)
        gone = int(torch.randint(max(len(axes["..."]), 1), (), generator=rng))
        axes[place] = tuple(1 if i == gone else n for i, n in enumerate(axes["..."])) if place == "..." else 1
    return axes


def _lead(spec: OpSpec, rng: torch.Generator) -> tuple[int, ...]:
    """The axes that "..." stands for; where a tensor has no others, one of them is as varied as a named axis."""
    lead: tuple[int, ...] = pick(LEADS, rng)
    if any(t.flat for t in spec.tensors):
        own = pick(LENGTHS, rng)
        return pick(((*lead, own), (own, *lead)), rng)  # type: ignore[no-any-return]
    return lead


def _scalar(item: Scalar | Axis, shapes: dict[str, tuple[int, ...]], rng: torch.Generator) -> Any:
    """A value, or None to leave the default."""
    if isinstance(item, Axis):
        rank = len(shapes[item.of])
        return None if item.optional and pick((0, 1, 2), rng) == 0 else pick(range(-rank, rank), rng)
    if item.length:
        return _several(item, rng)
    if item.type is int and item.optional and pick((0, 1, 2), rng) == 0:
        return None
    if item.type is int:
        lengths = [n for shape in shapes.values() for n in shape if n]
        return pick((0, 1, *(n - 1 for n in lengths)), rng)
    return pick([None, pick(values, rng)], rng) if (values := pool(item)) else None


def _several(item: Scalar, rng: torch.Generator) -> Any:
    """One number, a number per place, or None to leave the default; of the numbers that the spec names."""
    named = [v if isinstance(v, tuple) else (v,) for v in (*item.trials, item.default) if v not in (None, REQUIRED)]
    numbers = [number for values in named for number in values]
    each = tuple(pick(numbers, rng) for _ in range(item.length or 0))
    return pick((each, each[0], *([] if item.default is REQUIRED else [None])), rng)


def small(case: Case, elements: int) -> bool:
    """Whether no tensor of a case has more elements than that."""
    try:
        return all(torch.Size(shape).numel() <= elements for shape in case.shapes.values())
    except ArgumentError:  # more elements than a case may have
        return False


def permitted(spec: OpSpec, case: Case, dtype: torch.dtype) -> Call | None:
    """The call on tensors without data on the newest GPU, or None if the spec refuses it."""
    try:
        return spec.hypothetical(case, dtype, capability=NEWEST)
    except ArgumentError:
        return None


def fitting(spec: OpSpec, requires: tuple[Condition, ...], case: Case) -> list[torch.dtype]:
    """The dtypes in which a case meets the conditions, on the newest GPU."""
    calls = ((d, permitted(spec, case, d)) for d in spec.dtypes if case.dtypes is None or d in case.dtypes)
    return [dtype for dtype, call in calls if call and not any(c.check(call) for c in requires)]
