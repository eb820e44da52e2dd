"""Every scalar takes the values that a default hides: zero, negative, tiny and large ones, and both ends of its range.

Numbers of full mantissas come in pairs that are nearly equal, in turn: what keeps fewer digits of one, or remembers a
result by them, gives one for the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice, product
from typing import Any

import torch

from kernelmux.conformance.check import Check
from kernelmux.conformance.inputs import generate, layouts
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.judging import ahead, asked_less
from kernelmux.conformance.judging.probe import Probe
from kernelmux.conformance.variations import neighbouring_trials
from kernelmux.registry.cases import Case
from kernelmux.registry.numerics import Bound
from kernelmux.registry.spec import REQUIRED, Scalar, numerics

LEAST = 64  # elements of the largest tensor
CANDIDATES = 8  # calls of which those that tell are chosen
# Small inputs as well: an eps of 0 is told from one of 1e-6 only where the mean square is not far larger.
DISTRIBUTIONS = ("normal", "small", "wide")
TELLING = ("gaps", "small", "normal")  # an eps decides alone in rows of zeros, of which a single vector has none
LONG, SHORT = 515, 2  # terms of a sum: tiles of them go round a ring more than once; the length of other axes then
STRIDED = [layout for layout in layouts.LAYOUTS if layout.same]


def run(probe: Probe) -> None:
    scalars = [i for i in probe.spec.scalars if isinstance(i, Scalar)]
    pools = {i.name: values for i in scalars if (values := [*generate.pool(i), *generate.ends(i)])}
    if not pools:
        probe.skip_all("no scalar has values that every shape allows; axes and indices are drawn with the shapes")
        return
    near = (trial for item in scalars if item.type is float and item.length is None for trial in _near(probe, item))
    for trial in ahead.trials(probe, filter(probe.able, chain(_all(probe, pools), near, _long_sums(probe)))):
        with probe.judge(trial) as judge:
            judge.accurate(judge.call())


def _all(probe: Probe, pools: dict[str, list[Any]]) -> Iterator[Trial]:
    """Every value in small calls, in each kind of call, and together with others; of the last two one in turn, where these
    are shared out.
    """
    for turn, (name, value) in enumerate(settings(pools)):
        alone = asked_less.due(probe, turn)
        yield from trials_with(probe, name, value, turn)
        if alone or not value or len(pools) == 1:
            yield from every_kind(probe, name, value, turn)
        if len(pools) > 1 and not (alone and asked_less.shares(probe)):
            others = {n: pool[turn % len(pool)] for n, pool in pools.items() if n != name}
            yield from trials_with(probe, name, value, turn, **others)


def _long_sums(probe: Probe) -> Iterator[Trial]:
    """A call whose scalars are not at their defaults and whose sums are long: some values have kernels of their own."""
    if probe.options.cases or probe.options.tier == "smoke":
        return
    for base in probe.sample(4):
        axes = neighbouring_trials.axes(probe, base)
        for axis in axes:
            made = neighbouring_trials.resized(probe, base, dict.fromkeys(axes, SHORT) | {axis: LONG})
            if made is None or neighbouring_trials.terms(made.call) < LONG:
                continue
            other = max(made, neighbouring_trials.otherwise(probe, made), key=_unusual)
            if _unusual(other):
                yield other.changed("long sums")
                return


def _unusual(trial: Trial) -> int:
    """How many scalars are not at their defaults."""
    pairs = ((item, value) for item, value in zip(trial.spec.inputs, trial.values, strict=True))
    return sum(value != item.default for item, value in pairs if isinstance(item, Scalar))


def _near(probe: Probe, item: Scalar) -> Iterator[Trial]:
    """Two numbers that are nearly equal and no short ones, in turn, on inputs that tell them apart."""
    if probe.options.cases:
        return
    for pair in generate.near(item, probe.options.seed):
        for case, dtype in product(probe.small_cases(LEAST)[:CANDIDATES], probe.options.dtypes_of(probe.spec)):
            made = [generate.together(probe.spec, case, {item.name: value}) for value in pair]
            allowed = dtype.itemsize >= 4 and dtype in probe.options.dtypes_of(probe.spec, case)
            if not allowed or not all(generate.permitted(probe.spec, one, dtype) for one in made):
                continue
            first, second = (probe.make(one, dtype) for one in made)
            second = second.changed(f"nearly {item.name} of the call before", **first.tensors)
            if any(map(probe.reasons, (first, second))) or not _apart(probe, first, second):
                continue
            yield from (first, second, first)
            return


def _apart(probe: Probe, one: Trial, other: Trial) -> bool:
    """Whether one result is no right one for the other call."""
    limits = one.bounds(probe.arithmetics(one))
    pairs = zip(one.references, other.references, limits, strict=True)
    return any(not _same(got.to(one.dtype), ref, limit) for ref, got, limit in pairs if limit is not None)


def settings(pools: dict[str, list[Any]]) -> Iterator[tuple[str, Any]]:
    """Every value of every scalar."""
    return ((name, value) for name, pool in pools.items() for value in pool)


def trials_with(probe: Probe, name: str, value: Any, turn: int, **others: Any) -> Iterator[Trial]:
    """Small calls with this value, in dtypes and distributions in turn, some strided; few where they are emulated.

    Not every call tells one value from another (softmax over one column does not), so those that do are preferred.
    """
    values = {**others, name: value}
    made = (generate.together(probe.spec, case, values) for case in probe.small_cases(LEAST) if case.inputs == "normal")
    fitting = list(islice((case for case in made if _fits(probe, case)), CANDIDATES))
    if not fitting or (probe.options.cases and not any(_is_open(c, name, value) for c in probe.cases)):
        return
    number = isinstance(value, float)
    several = (1 if others else 2) if probe.emulated else len(DISTRIBUTIONS)
    for i, kind in enumerate(DISTRIBUTIONS[: several if number else 1]):
        cases = [generate.with_scalars(case, {"inputs": kind}) for case in fitting]
        most = (1 if number or (probe.brief and not others) else 3) if probe.emulated else 3
        telling = (case for case in cases if _telling(probe, case, values))
        for case in list(islice(telling, most)) or cases[:most]:
            yield from _trial(probe, case, turn + i)


def every_kind(probe: Probe, name: str, value: Any, turn: int) -> Iterator[Trial]:
    """The value in each kind of call, on inputs that tell it from the default; with choices, empty ones too.

    Where calls are emulated all kinds are given 0, which is easily taken for "not given", and of the others one in turn.
    In a brief run choices are given to one kind, and to one empty call, in turn.
    """
    number = isinstance(value, float)
    cases, empty = probe.kinds(LEAST), [] if number else [c for c in probe.cases if _empty(c)]
    if probe.brief if not number else value and probe.emulated:
        cases, empty = ([some[turn % len(some)]] if some else [] for some in (cases, empty))
    cases = [*cases, *empty]
    for i, case in enumerate(cases):
        made = generate.with_scalars(case, {name: value})
        if not _fits(probe, made) or (probe.options.cases and not _is_open(case, name, value)):
            continue
        if number:
            tries = [generate.with_scalars(made, {"inputs": kind}) for kind in TELLING]
            made = next((c for c in tries if _telling(probe, c, {name: value})), tries[0])
        dtypes = probe.options.dtypes_of(probe.spec, made)
        for dtype in dtypes[(turn + i) % len(dtypes) :][:1] if probe.emulated else dtypes:
            yield probe.make(made, dtype)


def _empty(case: Case) -> bool:
    return any(0 in shape for shape in case.shapes.values())


def _telling(probe: Probe, case: Case, values: dict[str, Any]) -> bool:
    """Whether each of the values gives another result than its default would, beyond the bound."""
    return all(_differs(probe, case, name) for name in values if case.scalars[name] is not None)


def _differs(probe: Probe, case: Case, name: str) -> bool:
    """Whether the result is another one where a scalar is left to its default."""
    dtype = probe.options.dtypes_of(probe.spec, case)[0]
    default = next(i.default for i in probe.spec.scalars if i.name == name)
    if default is REQUIRED or not generate.permitted(probe.spec, generate.with_scalars(case, {name: default}), dtype):
        return True
    ours = probe.make(case, dtype)
    theirs = probe.spec.evaluate(probe.spec.bind(*(default if i.name == name else v for i, v in _named(ours))))
    limits = ours.bounds(probe.arithmetics(ours))
    outputs = zip(probe.spec.outputs, ours.references, theirs, limits, strict=True)
    return any(
        ref.shape != other.shape or not _same(other.to(output.dtype_of(ours.call)), ref, limit)
        for output, ref, other, limit in outputs
    )


def _same(got: torch.Tensor, ref: torch.Tensor, limit: Bound | None) -> bool:
    return torch.equal(got, ref.to(got.dtype)) if limit is None else numerics.compare(got, ref, limit.total).passed


def _named(trial: Trial) -> Iterator[tuple[Any, Any]]:
    return zip(trial.spec.inputs, trial.values, strict=True)


def _is_open(case: Case, name: str, value: Any) -> bool:
    """Whether a case that was asked for leaves the scalar open, or is about this value."""
    return name not in case.scalars or case.scalars[name] == value


def _fits(probe: Probe, case: Case) -> bool:
    return any(generate.permitted(probe.spec, case, d) for d in probe.options.dtypes_of(probe.spec, case))


def _trial(probe: Probe, case: Case, turn: int) -> Iterator[Trial]:
    """The call in the first dtype, from the one whose turn it is, that the variant can run; every third one strided."""
    dtypes = probe.options.dtypes_of(probe.spec, case)
    order = [dtypes[(turn + i) % len(dtypes)] for i in range(len(dtypes))]
    trial = next((t for d in order if not probe.reasons(t := probe.make(case, d))), None)
    if trial is None:
        probe.able(probe.make(case, order[0]))
        return
    yield trial
    layout = STRIDED[turn % len(STRIDED)]
    made = {name: new for name, x in trial.tensors.items() if (new := layout.of(x)) is not None}
    if made and turn % (6 if probe.emulated else 3) == 0:
        yield trial.changed(f"{', '.join(made)}: {layout.name}", **made)


CHECK = Check(
    run=run,
    column="scalar",
    summary="every scalar at zero, negative, tiny, large and boundary values, alone and together",
)
