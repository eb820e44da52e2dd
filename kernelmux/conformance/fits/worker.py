"""`python -m kernelmux.conformance.fits.worker`: asks everything of one card, and says so line by line as JSON.

A line per call that is done, and at the end the cells. What compiled and fitted is kept in a log, and not asked again
while the sources of the backend for the operator stay as they are; what did not is asked anew by every run. A compiler may
end this process: the log says in which call, and the next process of the same run goes on behind it.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from kernelmux.conformance.fits import calls, choices, record
from kernelmux.conformance.fits.judge import COMPILE, FITS, OUTCOMES, REFUSED, judged, noting
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.cases import Case
from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.spec import OpSpec
from kernelmux.registry.util import cards
from kernelmux.registry.util.cards import Card

REASONS = 3  # of an operator in a backend, kept with an example each


class FitsLog:
    """What a card was asked: a line [run, call, source, outcome, why] each, and [run, call] when one begins."""

    def __init__(self, path: Path, run: str) -> None:
        self.path, self.run = path, run
        self.known: dict[tuple[str, str], tuple[str, str]] = {}
        begun, text = "", path.read_text(encoding="utf-8") if path.exists() else ""
        for line in text.splitlines():
            try:
                of, call, *rest = json.loads(line)
            except ValueError:  # cut off when its process ended
                continue
            if rest:
                source, outcome, why = rest
                self.known.pop((call, source), None)
                if outcome == FITS or of == run:
                    self.known[call, source] = outcome, why
                begun = ""
            elif of == run:
                begun = call
        self.died = begun
        self.file = path.open("a", encoding="utf-8")
        self.file.write("\n" if text and not text.endswith("\n") else "")

    def __enter__(self) -> FitsLog:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def answer(self, call: str, source: str, ask: Any) -> tuple[str, str]:
        """What is known of a call, or what `ask` says."""
        if (call, source) in self.known:
            return self.known[call, source]
        if call == self.died:
            found = COMPILE, "the compiler ended its process"
        else:
            self._write(call)
            found = ask()
        self.known[call, source] = found
        self._write(call, source, *found)
        return found

    def _write(self, *values: str) -> None:
        print(json.dumps([self.run, *values]), file=self.file, flush=True)


def operator_fits(op: str, card: Card, names: tuple[str, ...], seed: int, log: FitsLog) -> dict[str, Any]:
    """The entries of an operator: by "auto" and by each backend."""
    spec = catalog.spec(op)
    sources = {name: record.source(op, name) for name in names}
    cells: dict[str, dict[str, Counter[str]]] = {name: {} for name in names}
    reasons: dict[str, dict[str, str]] = {name: {} for name in names}
    spills: dict[str, tuple[int, str]] = dict.fromkeys(names, (0, ""))
    for case, dtype in calls.calls_of(spec, card.key, seed):
        for name in names:
            outcome, why = _outcome(spec, case, dtype, name, card, log)
            if not outcome:
                continue
            cells[name].setdefault(SHORT[dtype], Counter())[outcome] += 1
            if outcome == FITS:
                spills[name] = max(spills[name], (int(why or 0), f"{case.text} {SHORT[dtype]}"))
            elif why and len(reasons[name]) < REASONS:
                reasons[name].setdefault(f"{outcome}: {why}", f"{case.text} {SHORT[dtype]}")
    return {
        name: {
            "source": sources[name],
            "calls": {dtype: [found[o] for o in OUTCOMES] for dtype, found in cells[name].items()},
            **({"why": reasons[name]} if reasons[name] else {}),
            **({"spills": spills[name]} if spills[name][0] else {}),
        }
        for name in names
        if cells[name]
    }


def _outcome(spec: OpSpec, case: Case, dtype: torch.dtype, name: str, card: Card, log: FitsLog) -> tuple[str, str]:
    """What becomes of a call; "" for one that no card takes."""
    choice = choices.chosen(spec, case, dtype, name, card)
    if not choice.variant:
        return (REFUSED, choice.why) if choice.why else ("", "")
    backend = choice.variant.partition("/")[0]
    call = f"{spec.name} {choice.variant} {SHORT[dtype]} {case.text}"
    source = f"{record.source(spec.name, backend)} {' '.join(record.versions().values())}"
    return log.answer(call, source, lambda: judged(spec, case, dtype, choice.variant, card))


def names(backends: tuple[str, ...]) -> tuple[str, ...]:
    """Who is asked: "auto" and the backends whose kernels can be compiled here."""
    return tuple(n for n in choices.ASKED if (not backends or n in backends) and (n == "auto" or registered.loads(n)))


def run(card: str, ops: tuple[str, ...], backends: tuple[str, ...], seed: int, log: Path, run: str) -> Iterator[Any]:
    """The answers about a card: an operator that is done, with its entries."""
    with cards.standing_for(card) as found, noting(), FitsLog(log, run) as book:
        for op in ops:
            yield op, operator_fits(op, found, names(backends), seed, book)


def main() -> None:
    """Reads the question, a line of JSON, from its input."""
    torch.set_num_threads(1)
    question = json.loads(sys.stdin.readline())
    ops, backends = tuple(question["ops"]), tuple(question["backends"])
    for op, entries in run(question["card"], ops, backends, question["seed"], Path(question["log"]), question["run"]):
        print(json.dumps([op, entries]), flush=True)


if __name__ == "__main__":
    main()
