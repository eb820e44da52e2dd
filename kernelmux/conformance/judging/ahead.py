"""Trials whose calls a candidate's process makes beside what goes on here: several in a message, before they are judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
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
    for ended, some in _in_turn(probe, found, lambda trial: trial.values, _prepare):
        yield from some
        if ended.error:
            with probe.judge(some[-1].changed("in a row with others")):
                raise ended.error


def calls(probe: Probe, found: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """As `trials`, for the arguments of calls that are made by `dispatch.call`."""
    for ended, some in _in_turn(probe, found, lambda values: values):
        yield from some
        if ended.error:
            raise ended.error


def _in_turn(
    probe: Probe,
    found: Iterable[One],
    values: Callable[[One], tuple[Any, ...]],
    prepare: Callable[[Probe, One], object] = lambda probe, one: None,
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
            return some, process.send(arguments(probe, process, map(values, some), Exception))

    some, sent = begun()
    while some:
        for one in some:
            prepare(probe, one)
        with probe.environment():
            sent.settle()
        following = begun()
        with process.answering(sent):
            yield sent, some
        some, sent = following


def _prepare(probe: Probe, trial: Trial) -> None:
    """What is right, worked out while the process computes."""
    with suppress(Exception):  # the judge meets it again
        if trial.size <= SMALL:
            trial.bounds(probe.arithmetics(trial))
        else:
            _ = trial.references


def _some(waiting: Iterator[One], values: Callable[[One], tuple[Any, ...]], process: CandidateProcess) -> list[One]:
    """As many as the pace of the process allows, as long as they are small."""
    most = next((count for seconds, count in PACE.items() if process.pace <= seconds), 1)
    found, tensors, elements = list[One](), 0, 0
    for one in islice(waiting, most):
        found.append(one)
        sizes = [v.numel() for v in values(one) if hasattr(v, "numel")]
        tensors, elements = tensors + len(sizes), elements + sum(sizes)
        if tensors + len(sizes) > TENSORS or elements + sum(sizes) > ELEMENTS:
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
