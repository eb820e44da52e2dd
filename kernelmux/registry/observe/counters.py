"""Counts of what ran since the process began, always on: one step of a counter per call.

A counter belongs to a kind of answer (operator, variant, who asked, what was preferred and could not run), which all plans
of that kind share. There are few kinds, whatever shapes come, because the reasons hold no sizes.
"""

from __future__ import annotations

import itertools
import os
import threading
from dataclasses import dataclass

from kernelmux.registry.errors import ArgumentError, shown
from kernelmux.registry.util import text_tables


@dataclass(frozen=True)
class Ran:
    """How calls of one kind were answered.

    variant: what ran, such as "cuda/tiled". source: who asked, such as "use()" or "auto". fallback: what was preferred and
    could not run the calls, each with its unmet conditions, separated by " | "; empty where nothing was.
    """

    operator: str
    variant: str
    source: str
    fallback: str = ""


@dataclass(frozen=True)
class Counted(Ran):
    """Calls of one kind; a call counts when it begins.

    refused: of these, how many went on to another variant, since the card refused the launch or no kernel compiled.
    """

    calls: int = 0
    refused: int = 0


@dataclass(frozen=True)
class Stats:
    """The answer of `kernelmux.stats()`: one entry per kind of answer, the most frequent first; str() is a table."""

    entries: tuple[Counted, ...]

    @property
    def calls(self) -> int:
        """Calls of all operators together."""
        return sum(entry.calls - entry.refused for entry in self.entries)

    def __str__(self) -> str:
        if not self.entries:
            return "kernelmux.stats(): no calls yet"
        rows = [
            (e.operator, e.variant, e.source, str(e.calls), str(e.refused or ""), e.fallback.replace(" | ", "\n"))
            for e in self.entries
        ]
        columns = ("operator", "ran", "asked by", "calls", "refused", "could not run")
        return text_tables.text(columns, rows, right={"calls", "refused"}, optional={"refused", "could not run"})


class Counter:
    """A number that any thread may raise; `tick` is a C function, which no other thread interrupts.

    Reading takes a step too, which is taken off again.
    """

    __slots__ = ("_aside", "refused", "tick")

    def __init__(self) -> None:
        self.tick = itertools.count().__next__
        self._aside = 0  # steps that are no calls
        self.refused = 0  # calls that went on to another variant

    def value(self, restart: bool = False) -> int:
        """Calls so far, or since the last restart; under `_lock`."""
        found = self.tick() - self._aside
        self._aside += 1 + (found if restart else 0)
        return found

    def refusals(self, restart: bool = False) -> int:
        """How many of the calls were refused, as `value` gives them."""
        found = self.refused
        self.refused = 0 if restart else found
        return found


_lock = threading.Lock()  # of readers, and of calls of a new kind; other calls take none
_counters: dict[Ran, Counter] = {}


def _unlocked() -> None:
    """In a process that was forked: the thread that held the lock is not there."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlocked)


def counter(ran: Ran) -> Counter:
    """The counter of a kind of answer, the same for every caller."""
    with _lock:
        return _counters.setdefault(ran, Counter())


def refuse(ran: Ran) -> None:
    """A call of this kind goes on to another variant."""
    found = counter(ran)
    with _lock:
        found.refused += 1


def stats(reset: bool = False) -> Stats:
    """How many calls each variant ran since the process began, by operator, by who asked, and by fallback.

    reset: begin anew afterwards. A call counts when it begins, also one that then raises; calls of other threads are
    counted exactly. A process that is forked begins with the counts of its parent, one that is spawned with none.
    """
    if not isinstance(reset, bool):
        raise ArgumentError(f"stats(): reset: expected True or False, got {shown(reset)}")
    with _lock:
        found = [
            Counted(**vars(ran), calls=counted.value(reset), refused=counted.refusals(reset))
            for ran, counted in list(_counters.items())
        ]
    return Stats(tuple(sorted((e for e in found if e.calls), key=lambda e: (-e.calls, e.operator, e.variant))))
