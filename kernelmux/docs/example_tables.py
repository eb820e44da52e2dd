"""The tables between <!-- fused --> or <!-- ways --> and their ends: what examples measured, where it is on record."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from kernelmux.docs import RECORDS, TOP
from kernelmux.registry.util import text_tables
from kernelmux.registry.util.files import between

TRIALS = RECORDS / "nvidia_h200/trials"
HEAD = ("rows x columns", "dtype", "who", "moves, in sizes of x", "us", "GB/s of that")


def filled(text: str) -> str:
    """A page with the tables that its markers ask for."""
    for name, (example, table) in TABLES.items():
        if (begin := f"<!-- {name} -->") in text:
            text = between(text, begin, f"<!-- /{name} -->", content(example, table))
    return text


def content(example: str, table: Callable[[list[dict[str, Any]]], str]) -> str:
    """The table of an example's record, or how to record it."""
    path = TRIALS / f"{example}.json"
    if not path.exists():
        return f"Not recorded yet; on a GPU: `python examples/{example}.py --out {path.relative_to(TOP)}`."
    record = json.loads(path.read_text(encoding="utf-8"))
    machine = record["machine"]
    versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items() if k in ("torch", "triton") or "cupy" in k)
    head = (
        f"{machine['name']}, driver {machine['driver']}, {versions}, {record['date']}, medians of {record['rounds']}:"
    )
    return f"{head}\n\n{table(record['rows'])}"


def _fused(rows: list[dict[str, Any]]) -> str:
    return text_tables.markdown(HEAD, _lines(rows))


def _ways(rows: list[dict[str, Any]]) -> str:
    """A line per way, a column per shape."""
    shapes, names = (list(dict.fromkeys(row[key] for row in rows)) for key in ("shape", "name"))
    us = {(row["shape"], row["name"]): row["us"] for row in rows}
    lines = [[name, *(f"{us[shape, name]:,.1f}".removesuffix(".0") for shape in shapes)] for name in names]
    return text_tables.markdown(("softmax in bf16, us", *shapes), lines, right=shapes)


def _lines(rows: list[dict[str, Any]]) -> Iterator[list[str]]:
    for row in rows:
        moved = f"{row['moved']:.2f}".rstrip("0").rstrip(".")
        yield [row["shape"], row["dtype"], row["name"], moved, f"{row['us']:.1f}", f"{row['gb_per_s']:.0f}"]


TABLES = {"fused": ("fused_softmax", _fused), "ways": ("ways_to_time", _ways)}  # marker: example, form
