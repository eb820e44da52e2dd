"""Tables of the record for the pages on measuring: between <!-- states --> and <!-- /states -->, graphs, and ceilings."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kernelmux.docs import ladder_tables
from kernelmux.perf.record import history
from kernelmux.perf.record.history import GpuRecord
from kernelmux.perf.rows.row_result import Timed
from kernelmux.perf.wording import wording
from kernelmux.perf.wording.groups import groups, large_groups
from kernelmux.registry.util import text_tables
from kernelmux.registry.util.files import between

SHOWN = ("add", "transpose", "softmax", "matmul", "attention")  # from few operations for each byte to many
SHORTEST = 8


def filled(text: str) -> str:
    """A page with the tables that its markers ask for."""
    for name, made in TABLES.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        if begin in text:
            text = between(text, begin, end, _everywhere(made))
    return text


def _everywhere(made: Callable[[GpuRecord], str]) -> str:
    parts = [f"{wording.where(r.results.machine)}:\n\n{made(r)}" for r in history.recorded()]
    return "\n\n".join(parts) or "No GPU is on record yet."


def mark(row: Timed) -> str:
    """The variant of a row, and whether its time is stale."""
    return f"{row.label}{', stale' if row.stale else ''}"


def states(record: GpuRecord) -> str:
    """The best variant of some operators after a rest and held: times and clocks."""
    best = {group.op: group.best for group in large_groups(ladder_tables.rows(record))}
    rows = [row for op in SHOWN if (row := best.get(op)) and row.held_us and row.mhz and row.held_mhz]
    head = ("largest workload", "variant", "rested, us", "MHz", "held, us", "MHz", "longer by")
    return text_tables.markdown(head, ([f"`{r.op}` {r.dtype}", mark(r), *_state(r)] for r in rows))


def _state(row: Timed) -> list[str]:
    held = row.held_us or row.median_us
    clocks = [f"{mhz:.0f}" for mhz in (row.mhz or 0.0, row.held_mhz or 0.0)]
    longer = wording.percent(max(held / row.median_us - 1, 0.0))
    return [wording.microseconds(row.median_us), clocks[0], wording.microseconds(held), clocks[1], longer]


def graphs(record: GpuRecord) -> str:
    """The shortest calls on record: alone, on the host, and in a graph."""
    head = ("call", "variant", "device, us", "host, us", "in a graph, us")
    return text_tables.markdown(head, _graphs(record))


def _graphs(record: GpuRecord) -> Iterator[list[str]]:
    best = [group.best for group in groups(ladder_tables.rows(record))]
    timed = sorted((row for row in best if row and row.host_us and row.graph_us), key=lambda row: row.median_us)
    for row in timed[:SHORTEST]:
        us = (row.median_us, row.host_us, row.graph_us)
        yield [f"`{row.op}` {row.workload} {row.dtype}", mark(row), *map(wording.microseconds, us)]


def ceilings(record: GpuRecord) -> str:
    """What the machine reached in the last recorded run."""
    found = record.results.ceilings
    if found is None:
        return "No ceilings are on record."
    rows = [("a large copy, bytes read and written", f"{found.copy / 1e12:.2f} TB/s")]
    rows += [
        ("a large read", f"{found.read / 1e12:.2f} TB/s"),
        ("host memory to the device", f"{found.host / 1e9:.1f} GB/s"),
    ]
    rows += [(f"a large product, {name}", f"{rate / 1e12:.0f} TFLOP/s") for name, rate in found.matmul.items()]
    rows += [("a large product, bf16, held", f"{found.held / 1e12:.0f} TFLOP/s")] if found.held else []
    rows += [("two events with nothing between", f"{found.gap * 1e6:.1f} us")]
    return text_tables.markdown(("ceiling", "reached"), rows)


TABLES = {"states": states, "graphs": graphs, "ceilings": ceilings}
