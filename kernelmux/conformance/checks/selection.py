"""A variant that is named runs, in every way of naming; nothing else runs in its place but where a chain says so.

The variant is called for real twice: directly, and while a scope, a default, the environment and a file all name it. For
each way alone a stand-in takes its place in the ladder, which says that it was called and returns the first result.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kernelmux.conformance.check import Check
from kernelmux.conformance.judging.probe import Judge, Probe
from kernelmux.registry.backend import Implementation
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch
from kernelmux.registry.choice import precedence
from kernelmux.registry.errors import UnsupportedError
from kernelmux.registry.spec import Call

FILE = "KERNELMUX_CONFIG"
NEVER = "is a stand-in that runs nothing"


class UnmetCondition:
    """A condition that no call meets."""

    text = NEVER

    def check(self, call: Call) -> str | None:
        return NEVER


@dataclass
class Way:
    """One way of naming backends. source: what the decision must say about who spoke."""

    note: str
    source: str
    argument: precedence.Names | None = None
    around: AbstractContextManager[Any] = field(default_factory=nullcontext)


def run(probe: Probe) -> None:
    with _silent(), tempfile.TemporaryDirectory(prefix="kernelmux-selection-") as folder:
        ways = partial(_ways, probe, Path(folder) / "choice.toml")
        for trial in probe.sample(1):
            with probe.judge(trial) as judge:
                outputs = judge.call()
                _all_at_once(judge, outputs, ways())
                _each_way(judge, outputs, ways())
                _by_backend(judge)
                _falls_through(judge, outputs)
                _strict(judge, outputs)
                _propagates(judge, outputs)


# --- who names it gets it ---------------------------------------------------------------------------------------------


def _all_at_once(judge: Judge, outputs: Sequence[torch.Tensor], ways: Iterable[Way]) -> None:
    """The real variant, under everything that names it: a kernel or launcher that asks who did shows here."""
    with ExitStack() as stack:
        for way in ways:
            stack.enter_context(way.around)
        got = _called(judge, None)
    if judge.probe.implementation.deterministic:
        _equal(judge, got, outputs)
    else:
        judge.accurate(got)


def _each_way(judge: Judge, outputs: Sequence[torch.Tensor], ways: Iterable[Way]) -> None:
    """In each way alone the stand-in is called, its result comes back, and the decision says who spoke."""
    probe, trial = judge.probe, judge.trial
    for way in ways:
        with way.around, _standing_in(probe, outputs) as calls:
            source = precedence.requested(probe.spec.name, way.argument, trial.call).source
            named = _which(judge, way.argument)
            got = _called(judge, way.argument)
        judge.require(named == probe.label, f"{way.note} names {probe.label}, but which() says {named}")
        judge.require(source == way.source, f"{way.note}: expected that {way.source} spoke, got {source}")
        judge.require(len(calls) == 1, f"{way.note} names {probe.label}: expected one call of it, got {len(calls)}")
        _equal(judge, got, outputs)


def _ways(probe: Probe, path: Path) -> Iterator[Way]:
    """Every way; path: of the file, which is written first."""
    rule = f'[[rules]]\nop = "{probe.spec.name}"\ndevice = "{probe.device.type}"\nbackend = "{probe.label}"\n'
    path.write_text(rule, encoding="utf-8")
    op, label = probe.spec.name, probe.label
    yield Way("an argument", "call argument", label)
    yield Way("a chain as argument", "call argument", [label, label])
    yield Way("use()", "use()", around=precedence.use(label))
    yield Way("use() of the operator", "use()", around=precedence.use(label, ops=op, strict=True))
    yield Way("set_default()", f"set_default({op!r})", around=_default(op, label))
    for variable in (f"{precedence.VARIABLE}_{op.upper()}", precedence.VARIABLE):
        yield Way(variable, variable, around=_set(variable, label))
    yield Way("a rule of a file", f"{path}, rule 1", around=_set(FILE, str(path)))


def _by_backend(judge: Judge) -> None:
    """The name of the backend means the last of its rungs that can run the call."""
    probe = judge.probe
    able = [v.name for v in dispatch.verdicts(judge.trial.call, probe.backend) if v.able]
    for argument in (probe.backend, [probe.backend]):
        named = _which(judge, argument)
        judge.require(named == able[-1], f"{argument} means {named}, expected the last that can run it: {able[-1]}")


# --- what falls through, and what does not ------------------------------------------------------------------------------


def _falls_through(judge: Judge, outputs: Sequence[torch.Tensor]) -> None:
    """A chain goes on where conditions are unmet; a single name does not."""
    probe, unable = judge.probe, _name(judge.probe, "unable")
    with _standing_in(probe, outputs) as calls, _unable(probe):
        _equal(judge, _called(judge, [unable, probe.label]), outputs)
        judge.require(len(calls) == 1, f"the chain {unable}, {probe.label} did not go on to its second name")
        _refused(judge, unable, calls)


def _strict(judge: Judge, outputs: Sequence[torch.Tensor]) -> None:
    """Inside of a strict scope no chain goes on, wherever it is named."""
    probe, unable = judge.probe, _name(judge.probe, "unable")
    chain = [unable, probe.label]
    with _standing_in(probe, outputs) as calls, _unable(probe):
        for scope, argument in (
            (precedence.use(chain, strict=True), None),
            (precedence.use("auto", strict=True), chain),
        ):
            with scope:
                _refused(judge, argument, calls)


def _refused(judge: Judge, argument: precedence.Names | None, calls: Sequence[object]) -> None:
    """The call raises with the reason, and nothing has run."""
    before = len(calls)
    try:
        _called(judge, argument)
    except UnsupportedError as error:
        judge.require(NEVER in str(error), f"{argument}: the error does not give the reason {NEVER!r}: {error}")
        judge.require(len(calls) == before, f"{argument}: refused, but {judge.probe.label} ran")
        return
    judge.require(False, f"{argument or 'use(..., strict=True)'}: expected an UnsupportedError, but the call ran")


def _propagates(judge: Judge, outputs: Sequence[torch.Tensor]) -> None:
    """What a kernel raises reaches the caller, and the next of the chain does not run; one of our own errors as well."""
    probe, broken = judge.probe, _name(judge.probe, "broken")
    for thrown in (RuntimeError("the stand-in raises"), UnsupportedError("the stand-in refuses")):

        def raising(*values: Any, thrown: Exception = thrown) -> Any:
            raise thrown

        with _standing_in(probe, outputs) as calls, _rung(probe, "broken", _like(probe, raising)):
            try:
                _called(judge, [broken, probe.label])
                error: Exception | None = None
            except Exception as caught:
                error = caught
        same = type(error) is type(thrown) and str(error) == str(thrown)
        judge.require(same, f"a kernel raised {thrown!r}, but the caller got {error!r}")
        judge.require(not calls, f"a kernel raised {thrown!r}, and the next of the chain ran in its place")


# --- calls --------------------------------------------------------------------------------------------------------------


def _called(judge: Judge, argument: precedence.Names | None) -> tuple[torch.Tensor, ...]:
    with judge.probe.environment():
        result = dispatch.call(judge.probe.spec, judge.trial.values, argument)
    return result if isinstance(result, tuple) else (result,)


def _which(judge: Judge, argument: precedence.Names | None) -> str:
    with judge.probe.environment():
        return dispatch.which(judge.probe.spec.name, *judge.trial.values, backend=argument)


def _equal(judge: Judge, got: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> None:
    judge.well_formed(got)
    for output, x, y in zip(judge.trial.spec.outputs, got, want, strict=True):
        judge.equal(output.name, x, y)


# --- what stands around them ----------------------------------------------------------------------------------------------


def _name(probe: Probe, variant: str) -> str:
    return f"{probe.backend}/{variant}"


@contextmanager
def _rung(probe: Probe, variant: str, implementation: Implementation) -> Iterator[None]:
    """The ladder of the backend with this rung in it, at its end if it is new; no remembered choice is used."""
    ladder = registered.variants(probe.backend, probe.spec.name)
    before = ladder.get(variant)
    ladder[variant] = implementation
    precedence.reread()
    try:
        yield
    finally:
        if before is None:
            del ladder[variant]
        else:
            ladder[variant] = before
        precedence.reread()


def _like(probe: Probe, fn: Callable[..., Any]) -> Implementation:
    """The implementation with another function."""
    return replace(probe.implementation, fn=fn)


def _unable(probe: Probe) -> AbstractContextManager[None]:
    """A rung "unable", whose conditions no call meets."""
    return _rung(probe, "unable", replace(probe.implementation, requires=(UnmetCondition(),)))


@contextmanager
def _standing_in(probe: Probe, outputs: Sequence[torch.Tensor]) -> Iterator[list[tuple[Any, ...]]]:
    """A function in place of the variant's that returns copies of `outputs`; gives the list of its calls."""
    calls: list[tuple[Any, ...]] = []

    def stand_in(*values: Any) -> Any:
        calls.append(values)
        made = tuple(out.clone() for out in outputs)
        return made if len(probe.spec.outputs) > 1 else made[0]

    with _rung(probe, probe.variant, _like(probe, stand_in)):
        yield calls


@contextmanager
def _default(op: str, name: str) -> Iterator[None]:
    precedence.set_default(op, name)
    try:
        yield
    finally:
        precedence.set_default(op, None)


@contextmanager
def _silent() -> Iterator[None]:
    """Nothing in the environment chooses a backend, and there is no file; read anew at both ends."""
    before = {name: value for name, value in os.environ.items() if name == FILE or name.startswith(precedence.VARIABLE)}
    for name in before:
        del os.environ[name]
    try:
        with _set(FILE, ""):
            yield
    finally:
        os.environ.update(before)
        precedence.reread()


@contextmanager
def _set(variable: str, value: str) -> Iterator[None]:
    """A variable of the environment for a while; read anew at both ends."""
    before = os.environ.get(variable)
    os.environ[variable] = value
    precedence.reread()
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before
        precedence.reread()


CHECK = Check(
    run=run,
    column="select",
    summary="argument, use(), set_default(), environment and file are obeyed; only unmet conditions fall through",
)
