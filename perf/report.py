"""Rows as reports need them: grouped by what they compute, in ladder order, beside torch and the rung below."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kernelmux.perf.plan import BASELINE

Row = dict[str, Any]
UNKNOWN = 0.03  # the noise of a run without A/A, for want of a measured one
BUSY = 0.5  # the spread from which on a time says little: other work took the processor
LEAST = 0.01  # by which two rows can differ though each agrees with itself: they run at different times


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

    @property
    def noise(self) -> float | None:
        """How far the same variant lay apart at most when timed twice; None without A/A."""
        return max((r["apart"] for r in self.good if "apart" in r), default=None)

    def leads(self, row: Row) -> bool:
        """Whether nothing is faster than a row by more than the noise of the two."""
        best = self.best
        if best is None or row["status"] != "ok":
            return False
        if row is best:
            return True
        noise = UNKNOWN if self.noise is None else max(row.get("apart", 0.0), best.get("apart", 0.0), LEAST)
        slower = max(row["median_us"], row.get("again_us", 0.0))  # what differs much from itself leads nothing
        return bool(slower <= best["median_us"] * (1 + noise))

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
            found.setdefault(place(row), []).append(row)
    return [Group(*key, tuple(items)) for key, items in found.items()]


def place(row: Row) -> tuple[str, str, str]:
    """The group of a row."""
    return row["op"], row["workload"], row["dtype"]


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


def spread(row: Row) -> str:
    """How far the samples lie apart, or that they say nothing."""
    return "busy" if row["spread"] > BUSY else percent(row["spread"])


def added(row: Row) -> str:
    """Microseconds that the dispatcher adds, or that they could not be told: it cannot take time away."""
    return "busy" if _impossible(row) else f"{row['through_us'] - row['direct_us']:+.2f}"


def _impossible(row: Row) -> bool:
    return bool(row["direct_us"] - row["through_us"] > max(0.5, 0.1 * row["direct_us"]))


def busy(rows: Iterable[Row], overhead: Iterable[Row] = ()) -> str | None:
    """A sentence if other work on the machine has spoilt the times of some rows; None if not."""
    good = [row for row in rows if row["status"] == "ok"]
    wild = sum(row["spread"] > BUSY for row in good)
    wild += sum(_impossible(row) for row in overhead if "error" not in row)
    if not wild:
        return None
    return f"the machine is busy: {wild} times vary by more than {BUSY:.0%} or cannot be; run again when it is idle"


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
    noise = "" if group.noise is None else f", A/A {group.noise:.1%}"
    return f"{text}   {work}: floor {microseconds(row['floor_us'])} us by {row['floor_by']}{noise}"


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
    held = f" (bf16 held: {ceilings['held'] / 1e12:.0f})" if ceilings.get("held") else ""
    return (
        f"ceilings of this run: copy {ceilings['copy'] / 1e9:.0f} GB/s, read {ceilings['read'] / 1e9:.0f} GB/s,"
        f" host link {ceilings['host'] / 1e9:.1f} GB/s, matmul {products} TFLOP/s{held};"
        f" two events with nothing between {ceilings['gap'] * 1e6:.1f} us; the same call twice {ceilings['noise']:.1%}"
    )
