"""What variants launch, as short keys by the hash of their source: `launch_keys.json`, a row for each source on record.

A record names the source that it was made with. Where that is not the source of today, the record counts all the same if
both launch the same. Keys are computed on a CPU with one version of each compiler (`made_with`), by `python -m
kernelmux.conformance --rekey`; to read them takes no compiler, so that a machine with others has the same answers.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("launch_keys.json")
FORMAT = 1  # of what a key is made of
DIGITS = 6
TIERS = ("smoke", "ci")  # of the cases that variants are asked
DECLARED = "=" * DIGITS  # the id of what a variant declares of its results
UNMET, UNTOLD = "-" * DIGITS, "?" * DIGITS  # keys: the variant does not take the call; it could not be told
OTHER = "!" * DIGITS  # a key: another than that of today, when keys were last made anew
SAME, CHANGED, UNKNOWN = "same", "changed", "unknown"
Place = tuple[str, str, str]  # operator, backend, hash of the source


@dataclass(frozen=True)
class SourceKeys:
    """What the variants of a backend's operator launch. asked: ids; keys: per variant in that order; DIGITS each."""

    op: str
    backend: str
    source: str
    asked: str
    keys: dict[str, str]

    @property
    def place(self) -> Place:
        return self.op, self.backend, self.source

    def of(self, variant: str) -> dict[str, str]:
        """The keys of a variant by id; empty if there was no such variant."""
        return dict(zip(split(self.asked), split(self.keys.get(variant, "")), strict=False))


@dataclass(frozen=True)
class Keys:
    """All rows, and the versions of what they were computed with.

    meanings: what operators and the judge meant then, by their keys; texts: a digest of the sources of all that.
    """

    format: int
    made_with: dict[str, str]
    rows: dict[Place, SourceKeys]
    meanings: dict[str, str] = field(default_factory=dict)
    texts: str = ""


def split(text: str) -> list[str]:
    """The ids or keys that a text consists of."""
    return [text[i : i + DIGITS] for i in range(0, len(text), DIGITS)]


def digest(text: str) -> str:
    """What stands for a text in a key, and for a case as its id."""
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def workload(text: str, dtype: str) -> str:
    """The id of a workload in a dtype, "bf16"."""
    return digest(f"{text} {dtype}")


@cache
def known() -> Keys:
    """What is on record, read once."""
    return read(FILE)


def read(path: Path) -> Keys:
    """The keys in a file; none where there is no file."""
    if not path.exists():
        return Keys(FORMAT, {}, {})
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    rows = (SourceKeys(**row) for row in found["rows"])
    return Keys(**found | {"rows": {row.place: row for row in rows}})


def text(keys: Keys) -> str:
    """The file of keys, a line for each row."""
    head = json.dumps({name: value for name, value in vars(keys).items() if name != "rows"})
    lines = ",\n".join(json.dumps(vars(row)) for _, row in sorted(keys.rows.items()))
    return f'{head[:-1]}, "rows": [\n{lines}\n]}}\n'


def compared(op: str, backend: str, variant: str, then: str, now: str, item: str = "") -> str:
    """SAME if two sources of a variant launch the same, CHANGED if not, UNKNOWN if there are no keys of one of them.

    Compared is what both were asked; item: this workload alone, whatever the variant declares, if both were asked that (a
    point of a curve is not asked by itself).
    """
    if then == now:
        return SAME
    rows = [known().rows.get((op, backend, source)) for source in (then, now)]
    one, other = (row.of(variant) if row else {} for row in rows)
    ids = [item] if item in one and item in other else [i for i in one if i in other]
    if not ids or any(UNTOLD in (one[i], other[i]) for i in ids):
        return UNKNOWN
    return SAME if all(one[i] == other[i] != OTHER for i in ids) else CHANGED
