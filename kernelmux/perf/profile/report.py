"""A profile in the terminal, or in a file as the same text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kernelmux.perf.profile import findings
from kernelmux.perf.profile.counters import CounterRow, advice
from kernelmux.perf.profile.findings import Copies, Gpu, Operator, Stretch, Sum
from kernelmux.perf.profile.timeline import Timeline
from kernelmux.perf.rows.thresholds import BUSY, GOOD, IDLE_US, POOR, TINY_US
from kernelmux.perf.wording.wording import microseconds, quantity

STYLES = {GOOD: "green", POOR: "red"}
MOST = 10  # lines of a table
LONGEST = 60  # letters of the name of a kernel
NO_GPU = "no work of a GPU in this trace: these are times of the CPU"


def show(console: Console, line: Timeline) -> None:
    """Everything that a timeline shows."""
    if not line.work:
        console.print(NO_GPU, style="yellow")
        _table(console, "operators of torch, by the time that is theirs alone", _own_rows(line), OWN)
    _table(console, "operators of kernelmux", _operator_rows(findings.operators(line)), OPERATORS)
    for gpu in findings.gpus(line):
        _gpu(console, line, gpu)


def _gpu(console: Console, line: Timeline, gpu: Gpu) -> None:
    verdict = BUSY.verdict(gpu.busy)
    head = f"GPU {gpu.device} {gpu.name}".strip()
    console.print(
        f"\n[bold]{escape(head)}[/bold]: busy {microseconds(gpu.busy_us)} of {microseconds(gpu.window_us)} us,"
        f" [{STYLES.get(verdict, 'yellow')}]{gpu.busy:.0%}, {verdict}[/]",
        soft_wrap=True,
    )
    for sentence in sentences(line, gpu):
        console.print(f"[bold]->[/bold] {escape(sentence)}", soft_wrap=True)
    _table(console, "kernels, by total time", _kernel_rows(gpu), KERNELS)
    _table(console, "copies and fills", _copy_rows(gpu.copies), COPIES)


def sentences(line: Timeline, gpu: Gpu) -> Iterator[str]:
    """What to look at, the costliest first; one sentence where there is nothing."""
    found = [*_pauses(line, gpu), *_stretches(gpu.stretches), *_tiny(gpu), *_pageable(gpu.copies)]
    yield from (text for _, text in sorted(found, key=lambda pair: -pair[0]))
    if not found:
        yield f"no pause of {IDLE_US:.0f} us or more, no stretch that waits for launches, no kernel below {TINY_US:.0f} us"


Cost = tuple[float, str]  # microseconds, sentence


def _pauses(line: Timeline, gpu: Gpu) -> Iterator[Cost]:
    for pause in gpu.pauses[:3]:
        yield (
            pause.duration,
            f"idle for {microseconds(pause.duration)} us between {_name(pause.before.name)} and {_name(pause.after.name)}:"
            f" {findings.why(line, pause)}",
        )
    if rest := gpu.pauses[3:]:
        total = sum(p.duration for p in rest)
        yield total, f"idle {len(rest)} times more for {IDLE_US:.0f} us or longer, {microseconds(total)} us together"


def _stretches(found: Sequence[Stretch]) -> Iterator[Cost]:
    for one in found[:3]:
        yield (
            one.duration * (1 - one.busy),
            f"launch bound: {one.kernels} kernels in {microseconds(one.duration)} us, each launched after the one before"
            f" had ended; GPU busy {one.busy:.0%}, median kernel {microseconds(one.median_us)} us"
            f" ({', '.join(map(_name, one.names))}): capture it in a CUDA graph (kernelmux.graphed), or fuse it",
        )


def _tiny(gpu: Gpu) -> Iterator[Cost]:
    if gpu.tiny:
        count, total = sum(s.count for s in gpu.tiny), sum(s.total_us for s in gpu.tiny)
        every = sum(s.count for s in gpu.kernels)
        names = ", ".join(f"{_name(s.name)} {s.count} times" for s in gpu.tiny[:3])
        yield (
            total,
            f"{count} of {every} kernels take less than {TINY_US:.0f} us, {microseconds(total)} us together: {names}:"
            " a launch costs the host as much; fuse them",
        )


def _pageable(copies: Sequence[Copies]) -> Iterator[Cost]:
    for one in copies:
        if "Pageable" in one.name:
            yield (
                one.total_us,
                f"{one.name}: {one.count} copies from or to pageable memory, {one.rate:.1f} GB/s, for which the host waits:"
                " pin_memory=True and non_blocking=True",
            )


# --- tables ---------------------------------------------------------------------------------------------------

OPERATORS = ("operator", "calls", "host us", "kernels", "GPU us", "GPU us a call")
KERNELS = (
    "kernel",
    "launches",
    "total us",
    "share",
    "mean us",
    "longest",
    "grid",
    "block",
    "regs",
    "blocks/SM",
    "occupancy",
)
COPIES = ("copy", "count", "total us", "bytes", "rate")
OWN = ("operator", "calls", "own us", "mean us")
Row = Sequence[str]


def _table(console: Console, title: str, rows: Sequence[Row], head: Row) -> None:
    if not rows:
        return
    more = f", the first {MOST} of {len(rows)}" if len(rows) > MOST else ""
    console.print(f"\n[bold]{escape(title)}[/bold]{more}", soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for i, name in enumerate(head):
        table.add_column(name, justify="right" if i else "left", no_wrap=bool(i), overflow="fold")
    for row in rows[:MOST]:
        table.add_row(*map(escape, row))
    console.print(table)


def _operator_rows(found: Sequence[Operator]) -> list[Row]:
    return [(o.name, str(o.calls), microseconds(o.host_us), *_gpu_cells(o)) for o in found]


def _gpu_cells(found: Operator) -> Row:
    if not found.kernels:
        return "", "", ""
    return str(found.kernels), microseconds(found.gpu_us), microseconds(found.gpu_us / found.calls)


def _kernel_rows(gpu: Gpu) -> list[Row]:
    return [(_name(s.name), *_times(s, gpu.busy_us), *_shape(s)) for s in gpu.kernels]


def _times(found: Sum, whole: float) -> Row:
    times = map(microseconds, (found.mean_us, found.longest.duration))
    return str(found.count), microseconds(found.total_us), f"{found.total_us / whole:.0%}" if whole else "", *times


def _shape(found: Sum) -> Row:
    """Of the longest launch: grid, block, registers, waves, occupancy, as far as the trace has them."""
    facts = found.longest.facts
    sizes = ["x".join(map(str, facts[name])) if name in facts else "" for name in ("grid", "block")]
    occupancy = _fact(facts, "est. achieved occupancy %", "{:.0f}%".format)
    return *sizes, _fact(facts, "registers per thread", str), _fact(facts, "blocks per SM", "{:.2f}".format), occupancy


def _fact(facts: dict[str, Any], name: str, form: Callable[[Any], str]) -> str:
    return form(facts[name]) if name in facts else ""


def _copy_rows(found: Sequence[Copies]) -> list[Row]:
    return [
        (
            c.name,
            str(c.count),
            microseconds(c.total_us),
            quantity(c.bytes, "B"),
            f"{c.rate:.1f} GB/s" if c.bytes else "",
        )
        for c in found
    ]


def _own_rows(line: Timeline) -> list[Row]:
    found = findings.own_times(line)
    return [(s.name, str(s.count), microseconds(s.total_us), microseconds(s.mean_us)) for s in found]


def _name(text: str) -> str:
    """The name of a kernel without the types of its template; of a copy, as it is."""
    if text.startswith("Mem"):
        return text
    short = text.removeprefix("void ").replace("(anonymous namespace)::", "").partition("<")[0].partition("(")[0]
    return short if len(short) <= LONGEST else f"{short[: LONGEST - 3]}..."


def show_counters(console: Console, kernel: str, found: Sequence[CounterRow]) -> None:
    """The table of ncu for one kernel."""
    console.print(f"\n[bold]{escape(kernel)}[/bold], by ncu", soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    table.add_column("counter", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("meaning", overflow="fold")
    for one in found:
        style = STYLES.get(one.verdict, "yellow" if one.verdict else "")
        table.add_row(one.name, one.value, f"[{style}]{one.verdict}[/]" if style else "", escape(one.meaning))
    console.print(table)
    for sentence in advice(found):
        console.print(f"[bold]->[/bold] {escape(sentence)}", soft_wrap=True)
