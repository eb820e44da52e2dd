"""The table between <!-- fused --> and <!-- /fused -->: what examples/fused_softmax.py measured, where it is on record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernelmux.registry import tables
from kernelmux.registry.files import between

RECORD = Path(__file__).parent / "records/fused_softmax_nvidia_h200.json"
BEGIN, END = "<!-- fused -->", "<!-- /fused -->"
HEAD = ("rows x columns", "dtype", "who", "moves, in sizes of x", "us", "GB/s of that")


def filled(text: str) -> str:
    """A page with the table that its marker asks for."""
    return between(text, BEGIN, END, content()) if BEGIN in text else text


def content(path: Path = RECORD) -> str:
    """The table, or how to record it."""
    if not path.exists():
        return f"Not recorded yet; on a GPU: `python examples/fused_softmax.py --out docs/records/{path.name}`."
    record = json.loads(path.read_text(encoding="utf-8"))
    machine = record["machine"]
    versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items() if k in ("torch", "triton") or "cupy" in k)
    head = (
        f"{machine['name']}, driver {machine['driver']}, {versions}, {record['date']}, medians of {record['rounds']}:"
    )
    return f"{head}\n\n{tables.markdown(HEAD, _lines(record['rows']))}"


def _lines(rows: list[dict[str, Any]]) -> Iterator[list[str]]:
    for row in rows:
        moved = f"{row['moved']:.2f}".rstrip("0").rstrip(".")
        yield [row["shape"], row["dtype"], row["name"], moved, f"{row['us']:.1f}", f"{row['gb_per_s']:.0f}"]
