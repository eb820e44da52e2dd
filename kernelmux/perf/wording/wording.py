"""Numbers and facts as reports write them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kernelmux.emulator.texts import bytes_text
from kernelmux.perf import peers
from kernelmux.perf.record.run_file import Moved, Overhead, Results
from kernelmux.perf.rows import roofline
from kernelmux.perf.rows.machine import MeasuringMachine
from kernelmux.perf.rows.roofline import Ceilings
from kernelmux.perf.rows.row_result import LATE, RowResult, Timed
from kernelmux.perf.wording.groups import ResultGroup

OTHERS = {peers.NAME: "other libraries"}  # for a reader
NAMED = 5  # of what is left out
BUSY = 0.5  # a time of larger spread is not reliable: other work took the processor


def microseconds(value: float | None) -> str:
    """Four significant digits, no exponent."""
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def spread(row: Timed) -> str:
    """The spread of the samples; "busy" where the time is not reliable."""
    return "busy" if row.spread > BUSY else percent(row.spread)


def added(row: Overhead) -> str:
    """Microseconds that the dispatcher adds; "busy" if the two times cannot be true, because it seems to save time."""
    return "busy" if impossible(row) else f"{row.through_us - row.direct_us:+.2f}"


SURCHARGES = ("added", "bound adds", "unchecked", "gradient adds")  # what stands above them


def surcharges(row: Overhead) -> tuple[str, str, str, str]:
    """Microseconds that kx.op and a bound call, checked and not, add to the implementation; a gradient to kx.op."""
    bound = "" if row.bound_us is None else f"{row.bound_us - row.direct_us:+.2f}"
    unchecked = "" if row.unchecked_us is None else f"{row.unchecked_us - row.direct_us:+.2f}"
    gradient = "" if row.gradient_us is None else f"{row.gradient_us - row.through_us:+.2f}"
    return added(row), bound, unchecked, gradient


def impossible(row: Overhead) -> bool:
    """Whether the times cannot be true: other work took the processor meanwhile."""
    return row.direct_us - row.through_us > max(0.5, 0.1 * row.direct_us)


def busy(rows: Iterable[RowResult], overhead: Iterable[Overhead] = ()) -> str | None:
    """A sentence if other work on the machine has spoilt the times of some rows; None if not."""
    wild = sum(isinstance(row, Timed) and row.spread > BUSY for row in rows)
    wild += sum(impossible(row) for row in overhead if not row.error)
    if not wild:
        return None
    return (
        f"the machine is busy: {wild} times vary by more than {BUSY:.0%} or cannot be true; run again when it is idle"
    )


def moved(row: Moved) -> tuple[str, str, str, str, str]:
    """Who, the call, the bytes that it moves, those that it has to move, and one by the other."""
    name = f"{row.op} {row.label}{' (stale)' if row.stale else ''}"
    return name, f"{row.workload} {row.dtype}", bytes_text(row.moved), bytes_text(row.needed), f"{row.times:.2f}"


def times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x" if value < 10 else f"{value:.0f}x"


def rate(row: Timed) -> str:
    if row.point is None:
        return ""
    digits = 0 if row.point.rate >= 100 else 1
    return f"{row.point.rate:.{digits}f} {row.point.rate_unit}"


def rested(row: Timed) -> bool:
    """Whether a row was timed after a rest; what is known of the parts of its work, or held, is younger than that rule."""
    return bool(row.held_us or row.parts)


def share(row: Timed) -> str:
    """Of the floor, where there is one."""
    return percent(row.point.share if row.point else None)


def advice(row: Timed) -> str:
    """What to look at next, where there is a floor."""
    if row.point is None:
        return ""
    return roofline.advice(row.point.bound, row.point.share, row.spread, row.median_us, row.host_us or 0.0)


def floor(row: Timed | None) -> str:
    """The least time in microseconds, where it is known."""
    return microseconds(row.point.floor_us if row and row.point else None)


def quantity(value: float, unit: str) -> str:
    """A number with a decimal prefix: 268 MB, 137 Gflop."""
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def heading(group: ResultGroup) -> str:
    """What the group computes and the least time for it."""
    text = f"{group.op}  {group.workload}  {group.dtype}"
    row = group.best
    if row is None or row.point is None:
        return text
    noise = "" if group.noise is None else f", A/A {group.noise:.1%}"
    return f"{text}   {work(row)}: floor {floor(row)} us by {row.point.floor_by}{noise}"


def work(row: Timed) -> str:
    """What a call must move and compute."""
    return f"{quantity(row.bytes, 'B')}, {quantity(row.flops, 'flop')}"


def where(machine: MeasuringMachine) -> str:
    """The machine in one line."""
    versions = ", ".join(f"{k} {v}" for k, v in machine.versions.items() if k in ("torch", "triton") or "cupy" in k)
    driver = f", driver {machine.driver}" if machine.driver else ""
    return f"{machine.name}{driver}, {versions}"


def tested(results: Results) -> str:
    """The backends that were really timed, and on what."""
    names = [OTHERS.get(name, name) for name in dict.fromkeys(row.backend for row in results.timed)]
    return f"timed: {', '.join(names) or 'nothing'} on {results.machine.name or 'this machine'}"


def left_out(results: Results) -> Iterator[str]:
    """What was left out, by reason."""
    if results.left:
        yield results.left
    reasons: dict[str, list[str]] = {}
    for row in results.rows:
        if row.status == LATE:
            reasons.setdefault(row.error, []).append(f"{row.op} {row.dtype} {row.label}")
    for reason, names in reasons.items():
        yield f"not timed, {len(names)} rows, because {reason}: {named(names)}"


def named(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - NAMED} more (results.json)" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def main_roofs(ceilings: Ceilings) -> str:
    """The ceilings that most calls meet, in a short line."""
    products = ", ".join(f"{k} {v / 1e12:.0f}" for k, v in ceilings.matmul.items())
    return f"ceilings of this run: copy {ceilings.copy / 1e9:.0f} GB/s; matmul {products} TFLOP/s"


def roofs(ceilings: Ceilings) -> str:
    """The ceilings in one line."""
    products = ", ".join(f"{k} {v / 1e12:.0f}" for k, v in ceilings.matmul.items())
    held = f" (bf16 held: {ceilings.held / 1e12:.0f})" if ceilings.held else ""
    return (
        f"ceilings of this run: copy {ceilings.copy / 1e9:.0f} GB/s, read {ceilings.read / 1e9:.0f} GB/s,"
        f" host link {ceilings.host / 1e9:.1f} GB/s, matmul {products} TFLOP/s{held};"
        f" two events with nothing between {ceilings.gap * 1e6:.1f} us; the same call twice {ceilings.noise:.1%}"
    )
