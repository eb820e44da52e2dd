"""Every scalar takes the values that a default hides: zero, negative, tiny and large ones, and both ends of its range."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kernelmux.conformance import generate, layouts
from kernelmux.conformance.check import Check
from kernelmux.conformance.probe import Probe
from kernelmux.conformance.trials import Trial
from kernelmux.registry.cases import Case
from kernelmux.registry.spec import Scalar

LEAST = 64  # elements of the largest tensor
# Small inputs as well: an eps of 0 is told from one of 1e-6 only where the mean square is not far larger.
DISTRIBUTIONS = ("normal", "small", "wide")
STRIDED = [layout for layout in layouts.LAYOUTS if layout.same]


def run(probe: Probe) -> None:
    pools = {i.name: values for i in probe.spec.scalars if isinstance(i, Scalar) and (values := generate.pool(i))}
    if not pools:
        probe.skip_all("no scalar has values that every shape allows; axes and indices are drawn with the shapes")
        return
    for turn, (name, value) in enumerate(settings(pools)):
        for trial in trials_with(probe, name, value, turn):
            _ask(probe, trial)
        if len(pools) > 1:
            others = {n: pool[turn % len(pool)] for n, pool in pools.items() if n != name}
            for trial in trials_with(probe, name, value, turn, **others):
                _ask(probe, trial)


def settings(pools: dict[str, list[Any]]) -> Iterator[tuple[str, Any]]:
    """Every value of every scalar."""
    return ((name, value) for name, pool in pools.items() for value in pool)


def trials_with(probe: Probe, name: str, value: Any, turn: int, **others: Any) -> Iterator[Trial]:
    """Small calls with this value, in dtypes and distributions in turn, some strided; two where they are emulated."""
    fitting = [
        made
        for case in probe.small_cases(LEAST)
        if _fits(probe, made := generate.with_scalars(case, {**others, name: value}))
    ]
    cases = [c for c in fitting if c.scalars.get("inputs", "normal") == "normal"] or fitting
    if not cases or (probe.options.cases and not any(_asked(c, name, value) for c in probe.cases)):
        return
    kinds = DISTRIBUTIONS[: 2 if probe.emulated else None]
    for i, kind in enumerate(kinds if isinstance(value, float) else kinds[:1]):
        for case in cases[:1] if probe.emulated else cases[:3]:
            yield from _trial(probe, generate.with_scalars(case, {"inputs": kind}), turn + i)


def _asked(case: Case, name: str, value: Any) -> bool:
    """Whether a case that was asked for leaves the scalar open, or is about this value."""
    return name not in case.scalars or case.scalars[name] == value


def _fits(probe: Probe, case: Case) -> bool:
    return any(generate.hypothetical(probe.spec, case, d) for d in probe.options.dtypes_of(probe.spec, case))


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


def _ask(probe: Probe, trial: Trial) -> None:
    if probe.able(trial):
        with probe.judge(trial) as judge:
            judge.accurate(judge.call())


CHECK = Check(
    run=run, column="scalar", summary="every scalar at zero, negative, tiny, large and boundary values, alone and together"
)
