"""Which PTX operations are emulated and how, and which defects are noticed: the tables of docs/emulator.md.

python -m kernelmux.emulator.validation.coverage                            prints the tables
python -m kernelmux.emulator.validation.coverage --update docs/emulator.md  writes them between their markers
python -m kernelmux.emulator.validation.coverage --check docs/emulator.md   exit status 1 if that would change the file
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from kernelmux.emulator import ops
from kernelmux.emulator.ops import catalogue, dispatch

NOTES = Path(__file__).with_suffix(".toml")
BEGIN, END = "<!-- {} begin -->", "<!-- {} end -->"
TYPES = {
    "integers": {"s16", "s32", "s64", "u16", "u32", "u64"},
    "pairs of int16": {"u16x2", "s16x2"},
    "f32": {"f32"},
    "f64": {"f64"},
    "f16 and bf16, also in pairs": {"f16", "f16x2", "bf16", "bf16x2"},
}
OK, DIFFERS, USAGE = 0, 1, 2


@dataclass(frozen=True)
class OperationGroup:
    """Operations that are described together."""

    group: str
    names: tuple[str, ...]
    what: str = ""
    approximated: str = ""
    nothing: str = ""
    missing: str = ""

    @property
    def state(self) -> str:
        """Executed, approximated, no effect or not emulated, with the reason."""
        if not self.what:
            return f"not emulated: {self.missing}"
        kind = "approximated" if self.approximated else "no effect" if self.nothing else "executed"
        text = kind + (f": {self.approximated or self.nothing}" if kind != "executed" else "")
        return text + (f"; not {self.missing}" if self.missing else "")


@lru_cache(maxsize=1)
def entries() -> tuple[OperationGroup, ...]:
    """All entries, in the order of the file."""
    content: dict[str, list[dict[str, Any]]] = tomllib.loads(NOTES.read_text())
    return tuple(
        OperationGroup(group, tuple(item.pop("names")), **item) for group, items in content.items() for item in items
    )


def registered() -> set[str]:
    """The names under which operations are registered."""
    catalogue.load_all()
    return set(ops.OPERATIONS)


def operations() -> str:
    """The table of PTX operations, in Markdown."""
    catalogue.load_all()
    lines = ["| PTX | what it does | here |", "|---|---|---|"]
    group = ""
    for entry in entries():
        if entry.group != group:
            group = entry.group
            lines.append(f"| **{group}** | | |")
        names = " ".join(f"`{name}`" for name in entry.names)
        lines.append(f"| {names} | {entry.what}{_types(entry)} | {entry.state} |")
    count = sum(len(entry.names) for entry in entries() if entry.what)
    return "\n".join(
        [*lines, "", f"{count} operations; an instruction outside of this table is an error that names it."]
    )


def _types(entry: OperationGroup) -> str:
    """The types of operations that are registered by type, in words."""
    if not all(dispatch.types(name) for name in entry.names):
        return ""
    types = {type_ for name in entry.names for type_ in dispatch.types(name)}
    words = [word for word, members in TYPES.items() if types & members]
    return f" ({', '.join(words)})" if words else ""


def planted() -> str:
    """The table of planted defects, and the blind spots, in Markdown."""
    from kernelmux.emulator.validation.defects.catalogue import blind_spots, defects

    lines = ["| family | defects | reported | by a wrong result | blind |", "|---|---|---|---|---|"]
    families = dict.fromkeys(defect.family for defect in defects())
    rows = [[d for d in defects() if d.family == family] for family in families]
    for family, members in zip([*families, "**all**"], [*rows, list(defects())], strict=True):
        blind = sum(d.blind is not None for d in members)
        reported = sum(bool(d.kinds) for d in members)
        lines.append(f"| {family} | {len(members)} | {reported} | {len(members) - reported - blind} | {blind} |")
    spots = [f"* **`{d.name}`**: {d.wrong} On a GPU: {_lowered(d.gpu)} Here: {d.blind}." for d in blind_spots()]
    return "\n".join([*lines, "", "The known blind spots:", "", *spots])


def _lowered(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def compared() -> str:
    """The table of instruction classes that were compared with a GPU, in Markdown."""
    from kernelmux.emulator.validation.hardware.cli import distance
    from kernelmux.emulator.validation.hardware.comparing import share
    from kernelmux.emulator.validation.hardware.record import read

    record = read()
    lines = ["| instructions | cases | results | other bits | farthest |", "|---|---|---|---|---|"]
    for row in record.rows():
        lines.append(
            f"| {row.family} | {row.cases} | {row.results:,} | {share(row.differing, row.results)} | {distance(row)} |"
        )
    total = sum(record.results.values())
    where = f"{record.about['gpu']}, driver {record.about['driver']}"
    return "\n".join([*lines, "", f"{len(record.gpu)} cases, {total:,} results; {where}."])


SECTIONS: dict[str, Callable[[], str]] = {
    "operations": operations,
    "hardware": compared,
    "defects": planted,
}


def updated(text: str) -> str:
    """The text of a document with its sections written anew; LookupError without a pair of markers."""
    for name, make in SECTIONS.items():
        begin, end = BEGIN.format(name), END.format(name)
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise LookupError(f"no {begin} ... {end}")
        text = f"{before}{begin}\n{make()}\n{end}{after}"
    return text


def _parser() -> argparse.ArgumentParser:
    program = "python -m kernelmux.emulator.validation.coverage"
    made = argparse.ArgumentParser(prog=program, description=__doc__.splitlines()[0])
    made.add_argument("--update", type=Path, metavar="FILE", help="write the tables between their markers in FILE")
    made.add_argument("--check", type=Path, metavar="FILE", help="exit status 1 if --update would change FILE")
    return made


def _problems() -> Iterator[str]:
    described = {name for entry in entries() if entry.what for name in entry.names}
    refused = {name for entry in entries() if not entry.what for name in entry.names}
    yield from (f"{name} is registered and not described" for name in sorted(registered() - described - refused))
    yield from (f"{name} is described and not registered" for name in sorted(described - registered()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    args = _parser().parse_args(arguments)
    for problem in (problems := list(_problems())):
        print(f"coverage: {problem} in {NOTES.name}", file=sys.stderr)
    if problems:
        return USAGE
    file = args.update or args.check
    if file is None:
        print("\n\n".join(make() for make in SECTIONS.values()))
        return OK
    try:
        text = file.read_text()
        new = updated(text)
    except (OSError, LookupError) as error:
        print(f"coverage: {file}: {error}", file=sys.stderr)
        return USAGE
    if args.update:
        file.write_text(new)
        return OK
    print(f"{file} is {'up to date' if new == text else 'out of date: run --update'}")
    return OK if new == text else DIFFERS


if __name__ == "__main__":
    sys.exit(main())
