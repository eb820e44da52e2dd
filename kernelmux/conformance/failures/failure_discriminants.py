"""What sets the failing trials of an item apart from the passing ones: lengths, scalars, dtypes, layouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

SHOWN = 6  # values in a list
LEAST = 3  # trials, before they say anything
FEWEST_STEPS = 2  # different multiples among trials, before a divisor is more than a coincidence


@dataclass(frozen=True)
class TrialFacts:
    """One trial: whether it failed, and what is known of its call: axes and scalars by name, dtype, note."""

    failed: bool
    axes: dict[str, Any]
    dtype: str
    note: str


def describe(trials: Sequence[TrialFacts]) -> str:
    """What all failing trials have and no passing one has, the simplest first; "" where nothing tells them apart."""
    if len(trials) < LEAST or len({t.failed for t in trials}) < 2:
        return ""
    return "; ".join(list(_statements(trials))[:2])


def _statements(trials: Sequence[TrialFacts]) -> Iterator[str]:
    yield from _one_value("dtype", trials, lambda t: t.dtype, "fails only for {}", "fails for every dtype but {}")
    for name in _names(trials):
        if line := _of_axis(name, trials):
            yield line
    yield from _equal_axes(trials)
    yield from _notes(trials)


def _names(trials: Sequence[TrialFacts]) -> list[str]:
    """Axes and scalars that every trial has."""
    return [name for name in trials[0].axes if all(name in t.axes for t in trials)]


def _split(trials: Sequence[TrialFacts], value: Callable[[TrialFacts], Any]) -> tuple[list[Any], list[Any]] | None:
    """Different values of failing and of passing trials, or None if some value has both."""
    failing = list(dict.fromkeys(value(t) for t in trials if t.failed))
    passing = list(dict.fromkeys(value(t) for t in trials if not t.failed))
    return None if set(failing) & set(passing) else (failing, passing)


def _one_value(
    name: str, trials: Sequence[TrialFacts], value: Callable[[TrialFacts], Any], only: str, but: str
) -> Iterator[str]:
    parts = _split(trials, value)
    if parts and len(parts[0]) == 1:
        yield only.format(parts[0][0])
    elif parts and len(parts[1]) == 1:
        yield but.format(parts[1][0])


def _of_axis(name: str, trials: Sequence[TrialFacts]) -> str:
    """The strictest statement about one axis or scalar."""
    parts = _split(trials, lambda t: t.axes[name])
    if not parts:
        return ""
    failing, passing = parts
    if not all(type(v) is int for v in (*failing, *passing)):
        return _of_scalar(name, failing, passing)
    listed = f"fails for {name} = {_listed(sorted(failing))}; passes for {_listed(sorted(passing))}"
    rule = _divisor(name, failing, passing) or _threshold(name, failing, passing)
    return f"{listed} (fails whenever {rule})" if rule else listed


def _of_scalar(name: str, failing: list[Any], passing: list[Any]) -> str:
    if len(passing) == 1 and len(failing) > 1:
        return f"fails only for {name} != {passing[0]}"
    if len(failing) == 1:
        return f"fails only for {name} = {failing[0]}"
    return f"fails for {name} = {_listed(failing)}; passes for {_listed(passing)}"


def _divisor(name: str, failing: list[int], passing: list[int]) -> str:
    """The greatest power of two, as tiles are, that divides all lengths of one kind and none of the other."""
    for inside, outside, sign in ((passing, failing, "!="), (failing, passing, "==")):
        step = math.gcd(*inside) & -math.gcd(*inside)
        if step > 1 and len(set(inside) - {0}) >= FEWEST_STEPS and all(n % step for n in outside):
            return f"{name} % {step} {sign} 0"
    return ""


def _threshold(name: str, failing: list[int], passing: list[int]) -> str:
    if len(failing) > 1 and min(failing) > max(passing):
        return f"{name} > {max(passing)}"
    return f"{name} < {min(passing)}" if len(failing) > 1 and max(failing) < min(passing) else ""


def _equal_axes(trials: Sequence[TrialFacts]) -> Iterator[str]:
    """Two axes that are of one length in all failing trials and in no passing one, or the other way round."""
    names = [n for n in _names(trials) if all(type(t.axes[n]) is int for t in trials)]
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            verdicts = {(t.axes[a] == t.axes[b], t.failed) for t in trials}
            if verdicts == {(True, True), (False, False)}:
                yield f"fails only for {a} = {b}"
            elif verdicts == {(True, False), (False, True)}:
                yield f"fails whenever {a} != {b}"


def _notes(trials: Sequence[TrialFacts]) -> Iterator[str]:
    """Layouts and other notes: those of failing trials, if no passing one has them."""
    parts = _split(trials, lambda t: t.note)
    if parts and "" not in parts[0] and len(parts[0]) + len(parts[1]) > 1:
        yield f"fails only for {_listed(parts[0], ' | ')}"


def _listed(values: Sequence[Any], mark: str = ", ") -> str:
    rest = len(values) - SHOWN
    return mark.join(map(str, values[:SHOWN])) + (f" and {rest} more" if rest > 0 else "")
