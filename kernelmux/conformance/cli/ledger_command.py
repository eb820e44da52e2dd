"""`kernelmux ledger`: which variants a GPU has verified as they stand, which have changed since, which none has run."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from kernelmux.conformance.session import worker_facts
from kernelmux.conformance.verified import ledger, meaning
from kernelmux.conformance.verified.ledger import NO_RECORD, STALE, UNKNOWN, VERIFIED
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.choice import requests
from kernelmux.registry.cli import json_form, terminal
from kernelmux.registry.errors import ArgumentError, KernelmuxError
from kernelmux.registry.util import text_tables
from kernelmux.registry.util.files import file_stem

PROGRAM = "kernelmux ledger"
WIDTH = 140  # where there is no terminal
WORDS = (VERIFIED, STALE, UNKNOWN, NO_RECORD)
EPILOG = """examples:
  kernelmux ledger                        how many variants of each operator are verified, on each GPU
  kernelmux ledger softmax matmul         their variants
  kernelmux ledger --stale --gpu h200     what has changed since it passed on an H200
  kernelmux ledger --rekey                after a change of a kernel: first compute what it launches now
  kernelmux ledger --rekey OLD=NEW        after a field of specs or of the judge was renamed: what is on record stays so

verified: it passed the suite on this GPU, launches what it launched then, and its operator means what it meant. stale: one
of these has changed. unknown: its source has changed, and what that launches has not been computed (--rekey).
A variant is recorded by `kernelmux conformance --record`, on the GPU. Exit status: 0, 2 usage error.
"""


@dataclass(frozen=True)
class Standing:
    """A variant on a GPU that has a ledger.

    status: VERIFIED, STALE, UNKNOWN or NO_RECORD. changed: what `ledger.changed` says. entry: what is on record.
    """

    gpu: str
    operator: str
    backend: str
    variant: str
    status: str
    changed: tuple[str, ...]
    entry: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.backend}/{self.variant}"

    @property
    def text(self) -> str:
        """As a cell of a table has it."""
        if not self.entry:
            return "-"
        told = f"{STALE} ({', '.join(self.changed)})" if self.status == STALE else self.status
        return f"{told}, {self.entry['date']}, {self.entry['tier']}"


def standings(books: Sequence[dict[str, Any]], ops: Sequence[str]) -> list[Standing]:
    """Every variant of these operators on each of the GPUs, in ladder order."""
    recorded = dict.fromkeys(name for book in books for name in book["entries"])
    names = [name for op in ops for name in _variants(op, recorded)]
    oracles = {op: meaning.oracle(catalog.spec(op)) for op in ops}
    return [_standing(book, oracles[name[0]], *name) for book in books for name in names]


def _variants(op: str, recorded: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """The variants of an operator; of a backend that cannot be loaded here those on record."""
    for backend in registered.backends():
        start = f"{op}/{backend}/"
        try:
            ladder: Iterable[str] = registered.variants(backend, op)
        except KernelmuxError:
            ladder = [name.removeprefix(start) for name in recorded if name.startswith(start)]
        yield from ((op, backend, variant) for variant in ladder)


def _standing(book: dict[str, Any], oracle: str, op: str, backend: str, variant: str) -> Standing:
    entry = book["entries"].get(f"{op}/{backend}/{variant}") or {}
    changed = ledger.changed(entry, op, backend, variant, oracle) if entry else ()
    status = ledger.word(changed) if entry else NO_RECORD
    return Standing(book["gpu"], op, backend, variant, status, changed, entry)


def parser() -> argparse.ArgumentParser:
    made = terminal.Parser(
        prog=PROGRAM,
        description="Shows the ledger of variants that passed the whole suite on a GPU.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("op", nargs="*", help="operators, each with a line per variant (default: all, with a line each)")
    made.add_argument("--gpu", default="", metavar="NAME", help="of the GPUs whose name has this in it (default: all)")
    made.add_argument("--stale", action="store_true", help="only variants that have changed since, and what changed")
    keys = (
        "first compute what changed sources launch; without a GPU. With OLD=NEW, which may be given again, records of what"
        " means the same stay verified though a field is called NEW now"
    )
    made.add_argument("--rekey", nargs="?", const="", action="append", metavar="OLD=NEW", help=keys)
    made.add_argument("--json", action="store_true", help="as one JSON document")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    return terminal.run(PROGRAM, lambda: _main(parser().parse_args(arguments)))


def _main(options: argparse.Namespace) -> int:
    books = _books(options.gpu)
    asked = options.rekey or []
    options.op = [
        text for text in asked if text and "=" not in text
    ] + options.op  # `--rekey softmax` names an operator
    ops = requests.operators(options.op, "ledger") if options.op else list(catalog.usable())
    if options.rekey:
        from kernelmux.conformance.verified import rekey, renamed  # which need the compilers

        def say(line: str) -> None:
            print(line, file=sys.stderr)

        if names := [text for text in asked if "=" in text]:
            renamed.command(names, options.op, say)
        if status := rekey.command(rekey.MISSING, options.op, say):
            return status
        books = _books(options.gpu)
    found = standings(books, ops)
    if options.json:
        print(json_form.text(document(books, found, options.stale)))
        return terminal.OK
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    lines = _text(books, found, bool(options.op), options.stale, console.width)
    console.print("\n".join(lines), markup=False, soft_wrap=True)
    return terminal.OK


def _books(gpu: str) -> list[dict[str, Any]]:
    """The ledgers of the GPUs that are meant."""
    found = [book for book in ledger.books() if file_stem(gpu) in file_stem(book["gpu"])]
    if not found:
        known = ", ".join(book["gpu"] for book in ledger.books())
        raise ArgumentError(
            f"--gpu: expected a part of the name of a GPU with a ledger, {known or 'none'}, got {gpu!r}"
        )
    return found


def document(books: Iterable[dict[str, Any]], found: Sequence[Standing], stale: bool) -> dict[str, Any]:
    """The answer as data; stale: of the variants only those that are."""
    return {
        "versions_here": worker_facts.versions(),
        "gpus": [
            {"name": book["gpu"], "capability": book.get("capability"), **_counts(book["gpu"], found)} for book in books
        ],
        "variants": [
            {
                "gpu": s.gpu,
                "operator": s.operator,
                "backend": s.backend,
                "variant": s.variant,
                "status": s.status,
                "changed": s.changed,
                "date": s.entry.get("date"),
                "tier": s.entry.get("tier"),
                "passed": s.entry.get("passed"),
                "versions": s.entry.get("versions"),
            }
            for s in found
            if s.status in (STALE, UNKNOWN) or not stale
        ],
    }


def _counts(gpu: str, found: Iterable[Standing]) -> dict[str, int]:
    counts = Counter(s.status for s in found if s.gpu == gpu)
    return {name.replace(" ", "_"): counts[name] for name in WORDS}


# --- the text -------------------------------------------------------------------------------------------------


def _text(books: list[dict[str, Any]], found: Sequence[Standing], each: bool, stale: bool, width: int) -> Iterator[str]:
    """How many, then by operator or by variant, then what they were recorded with."""
    gpus = [book["gpu"] for book in books]
    counts = [(gpu, *map(str, _counts(gpu, found).values())) for gpu in gpus]
    yield text_tables.text(("GPU", *WORDS), counts, right=WORDS, width=width)
    yield ""
    rows = list(_by_variant(gpus, found, stale) if each or stale else _by_operator(gpus, found))
    if rows:
        yield text_tables.text(("variant" if each or stale else "operator", *gpus), rows, width=width)
        yield ""
    if any(s.status == STALE for s in found):
        yield from text_tables.wrapped(
            "stale: what it launches, what is right (oracle), or how it is judged has changed since it passed",
            width,
        )
    for gpu in gpus:
        for line in _recorded_with(gpu, found):
            yield from text_tables.wrapped(line, width, "", "  ")
    here = ", ".join(f"{name} {version}" for name, version in worker_facts.versions().items())
    yield from text_tables.wrapped(f"here: {here}", width, "", "  ")


def _by_operator(gpus: Sequence[str], found: Iterable[Standing]) -> Iterator[tuple[str, ...]]:
    of: dict[str, dict[str, list[str]]] = {}
    for s in found:
        of.setdefault(s.operator, {}).setdefault(s.gpu, []).append(s.status)
    yield from ((op, *(_share(of[op][gpu]) for gpu in gpus)) for op in of)


def _share(statuses: Sequence[str]) -> str:
    """The variants of an operator on a GPU: "3 of 5, 2 stale"."""
    counts = Counter(statuses)
    if counts[NO_RECORD] == len(statuses):
        return "-"
    others = "".join(f", {counts[word]} {word}" for word in (STALE, UNKNOWN) if counts[word])
    return f"{counts[VERIFIED]} of {len(statuses)}{others}"


def _by_variant(gpus: Sequence[str], found: Iterable[Standing], stale: bool) -> Iterator[tuple[str, ...]]:
    of: dict[str, dict[str, Standing]] = {}
    for s in found:
        of.setdefault(f"{s.operator} {s.name}", {})[s.gpu] = s
    for name, by_gpu in of.items():
        shown = [by_gpu[gpu].text if by_gpu[gpu].status in (STALE, UNKNOWN) or not stale else "" for gpu in gpus]
        if any(shown):
            yield name, *shown


def _recorded_with(gpu: str, found: Iterable[Standing]) -> Iterator[str]:
    """The versions under which variants passed, most of them first."""
    sets = Counter(tuple(s.entry["versions"].items()) for s in found if s.gpu == gpu and s.entry)
    for versions, count in sets.most_common():
        told = ", ".join(f"{name} {version}" for name, version in versions)
        yield f"{gpu}: {text_tables.counted(count, 'variant')} recorded with {told}"
