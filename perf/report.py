"""Rows as reports need them: grouped by what they compute, in ladder order, beside torch and the rung below."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kernelmux.perf.plan import BASELINE

Row = dict[str, Any]


@dataclass(frozen=True)
class Group:
    """Rows of one operator, workload and dtype."""

    op: str
    workload: str
    dtype: str
    rows: tuple[Row, ...]

    @property
    def good(self) -> tuple[Row, ...]:
        return tuple(r for r in self.rows if r["status"] == "ok")

    @property
    def baseline(self) -> Row | None:
        """torch's row."""
        return next((r for r in self.good if r["backend"] == BASELINE), None)

    @property
    def best(self) -> Row | None:
        return min(self.good, key=lambda r: float(r["median_us"]), default=None)

    def best_of(self, backend: str) -> Row | None:
        """The fastest variant of one backend."""
        return min((r for r in self.good if r["backend"] == backend), key=lambda r: float(r["median_us"]), default=None)

    def times_torch(self, row: Row) -> float | None:
        """How many times faster than torch a row is."""
        return self.baseline["median_us"] / row["median_us"] if self.baseline else None

    def times_previous(self, row: Row) -> float | None:
        """How many times faster than the rung before it in the same backend."""
        ladder = [r for r in self.good if r["backend"] == row["backend"]]
        at = ladder.index(row)
        return ladder[at - 1]["median_us"] / row["median_us"] if at else None


def groups(rows: Iterable[Row]) -> list[Group]:
    """Rows by what they compute, in the order in which they came; skipped rows are left out."""
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row["status"] != "skipped":
            found.setdefault((row["op"], row["workload"], row["dtype"]), []).append(row)
    return [Group(*key, tuple(items)) for key, items in found.items()]


def key(row: Row) -> str:
    """What identifies a row in records."""
    return "|".join((row["op"], row["workload"], row["dtype"], row["backend"], row["variant"]))


def label(row: Row) -> str:
    return f"{row['backend']}/{row['variant']}" if row["variant"] else str(row["backend"])


def microseconds(value: float | None) -> str:
    """Four significant digits, no exponent."""
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x" if value < 10 else f"{value:.0f}x"


def rate(row: Row) -> str:
    if "rate" not in row:
        return ""
    digits = 0 if row["rate"] >= 100 else 1
    return f"{row['rate']:.{digits}f} {row['rate_unit']}"


def quantity(value: float, unit: str) -> str:
    """A number with a decimal prefix: 268 MB, 137 Gflop."""
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def heading(group: Group) -> str:
    """What the group computes and the least time for it."""
    text = f"{group.op}  {group.workload}  {group.dtype}"
    row = group.best
    if row is None or "floor_us" not in row:
        return text
    work = f"{quantity(row['bytes'], 'B')}, {quantity(row['flops'], 'flop')}"
    return f"{text}   {work}: floor {microseconds(row['floor_us'])} us by {row['floor_by']}"


def where(machine: dict[str, Any]) -> str:
    """The machine in one line."""
    versions = ", ".join(
        f"{k} {v}" for k, v in machine.get("versions", {}).items() if k in ("torch", "triton") or "cupy" in k
    )
    driver = f", driver {machine['driver']}" if machine.get("driver") else ""
    return f"{machine.get('name', 'unknown')}{driver}, {versions}"


def roofs(ceilings: dict[str, Any]) -> str:
    """The ceilings in one line."""
    products = ", ".join(f"{k} {v / 1e12:.0f}" for k, v in ceilings["matmul"].items())
    return (
        f"ceilings of this run: copy {ceilings['copy'] / 1e9:.0f} GB/s, read {ceilings['read'] / 1e9:.0f} GB/s,"
        f" host link {ceilings['host'] / 1e9:.1f} GB/s, matmul {products} TFLOP/s;"
        f" two events with nothing between {ceilings['gap'] * 1e6:.1f} us; the same call twice {ceilings['noise']:.1%}"
    )
