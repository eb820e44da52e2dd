"""Trials whose calls a candidate's process makes beside what goes on here: several in a message, before they are judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, TypeVar

from kernelmux.candidate import implementation as candidate
from kernelmux.candidate.calls_ahead import CallsAhead, Collected
from kernelmux.candidate.process import CandidateProcess
from kernelmux.conformance.inputs.trials import SMALL, Trial
from kernelmux.conformance.judging.probe import Probe
from kernelmux.registry.call import dispatch

PACE = {0.01: 16, 0.05: 4}  # calls in a message, by the seconds that one takes at most; else one
TENSORS = 48  # of the calls of a message: each may be a file
ELEMENTS = 2**17  # in and out of these
One = TypeVar("One")


def trials(probe: Probe, found: Iterable[Trial]) -> Iterator[Trial]:
    """The trials, each of which `judge.call()` is asked for once, with its own values, before the next is taken.

    For a function of this process these are the trials as they come. The tensors of a trial stay as they are.
    """
    yield from placed(probe, found, lambda trial: trial, lambda trial: (trial,), guarded=False)


def placed(
    probe: Probe,
    found: Iterable[One],
    trial: Callable[[One], Trial],
    calls: Callable[[One], Sequence[Trial]],
    guarded: bool = True,
) -> Iterator[One]:
    """As `trials`, for what has a trial that is judged and several calls, which are asked for in this order.

    guarded: what a message of them allocates lies between canaries.
    """

    def prepared(one: One) -> None:
        for each in calls(one):
            prepare(probe, each)

    for ended, some in _in_turn(probe, found, lambda one: [each.values for each in calls(one)], prepared, guarded):
        yield from some
        if ended.error:
            with probe.judge(trial(some[-1]).changed("in a row with others")):
                raise ended.error


@contextmanager
def together(probe: Probe, found: Sequence[Trial]) -> Iterator[None]:
    """Calls in here for these trials, each once and in this order, were made in a row, in one message if they are small.

    For a function of this process, or one of a GPU, they are made when they are asked for.
    """
    process = candidate.process_of(probe.implementation.fn)
    if process is None or probe.device.type != "cpu" or len(_some(iter(found), _values, process)) < len(found):
        yield
        return
    with probe.environment():
        sent = process.send(arguments(probe, process, map(_value, found), Exception))
    for trial in found:
        prepare(probe, trial)
    with probe.environment():
        sent.settle()
    with process.answering(sent):
        yield
    if sent.error:
        raise sent.error


def calls(probe: Probe, found: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """As `trials`, for the arguments of calls that are made by `dispatch.call`."""
    for ended, some in _in_turn(probe, found, lambda values: [values]):
        yield from some
        if ended.error:
            raise ended.error


def _in_turn(
    probe: Probe,
    found: Iterable[One],
    values: Callable[[One], Sequence[tuple[Any, ...]]],
    prepared: Callable[[One], object] = lambda one: None,
    guarded: bool = False,
) -> Iterator[tuple[CallsAhead, Sequence[One]]]:
    """As many as go into a message, with the calls; the next ones are under way meanwhile."""
    process = candidate.process_of(probe.implementation.fn)
    waiting = iter(found)
    if process is None or probe.device.type != "cpu":
        yield from ((NONE, [one]) for one in waiting)
        return

    def begun() -> tuple[list[One], CallsAhead]:
        some = _some(waiting, values, process)
        with probe.environment():
            each = arguments(probe, process, chain.from_iterable(map(values, some)), Exception)
            return some, process.send(each, guarded)

    some, sent = begun()
    while some:
        for one in some:
            prepared(one)
        with probe.environment():
            sent.settle()
        following = begun()
        with process.answering(sent):
            yield sent, some
        some, sent = following


def prepare(probe: Probe, trial: Trial) -> None:
    """What is right, worked out while the process computes."""
    with suppress(Exception):  # the judge meets it again
        if trial.size <= SMALL:
            trial.bounds(probe.arithmetics(trial))
        else:
            _ = trial.references


def _values(trial: Trial) -> list[tuple[Any, ...]]:
    return [trial.values]


def _value(trial: Trial) -> tuple[Any, ...]:
    return trial.values


def _some(
    waiting: Iterator[One], values: Callable[[One], Sequence[tuple[Any, ...]]], process: CandidateProcess
) -> list[One]:
    """As many as the pace of the process allows, as long as they are small."""
    most = next((count for seconds, count in PACE.items() if process.pace <= seconds), 1)
    found, calls, tensors, elements = list[One](), 0, 0, 0
    for one in waiting:
        found.append(one)
        each = values(one)
        sizes = [v.numel() for call in each for v in call if hasattr(v, "numel")]
        calls, tensors, elements = calls + len(each), tensors + len(sizes), elements + sum(sizes)
        if calls >= most or tensors + len(sizes) > TENSORS or elements + sum(sizes) > ELEMENTS:
            break
    return found


def arguments(
    probe: Probe, process: CandidateProcess, each: Iterable[tuple[Any, ...]], *left_out: type[Exception]
) -> list[Sequence[Any]]:
    """What calls give the function: they go as far as that. left_out: errors of those that do not come so far."""
    with process.collected() as found:
        for values in each:
            with suppress(Collected, *left_out):
                dispatch.call(probe.spec, values, probe.label)
    return found


NONE = CallsAhead((), list)
