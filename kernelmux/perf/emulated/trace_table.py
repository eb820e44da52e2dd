"""The table of a trace: every source line beside what its accesses cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kernelmux.emulator.texts import bytes_text, counted, number, percent
from kernelmux.emulator.traces import FINE, LaunchTrace, LineCounts, Traffic, excess, readings

STYLES = {
    "coalesced": "green",
    "conflict-free": "green",
    "cached": "blue",
    "uncoalesced": "red",
    "conflicts": "yellow",
    "plain": "dim",
}
LARGEST_GAP = 2  # lines without instructions that are shown between two that have some
# Right of the source, with their least widths: "per request" are sectors or passes, (the least possible) behind.
COLUMNS = {
    "warp instr.": 11,
    "access": 18,
    "requests": 8,
    "per request": 11,
    "efficiency": 10,
    "conflicts": 9,
    "moved": 9,
}
NARROW = ("warp instr.", "moved", "requests")  # columns that a narrow terminal does without, in this order
SOURCE = 16  # characters of the source that are shown at least


def show(console: Console, launch: LaunchTrace, most: int | None = None) -> None:
    """Prints one launch: the table, a summary, and what it means. most: only so many lines."""
    items = list(_chosen(launch, most))
    widths = _widths([item for item in items if isinstance(item, LineCounts)])
    quiet = not any(t.space == "shared" for item in items if isinstance(item, LineCounts) for t in item.traffic)
    left_out = _left_out(widths, console.width, quiet)
    console.print(_table(console, launch, items, {name: n for name, n in widths.items() if name not in left_out}))
    if missed := [name for name in left_out if name in NARROW]:
        _say(console, f"  (no room for {', '.join(missed)}: a wider terminal, or --json FILE)", 2)
    for name, text in summary(launch):
        _say(console, f"  {name:<12} {escape(text)}", 15)
    for sentence in sentences(launch):
        _say(console, f"[bold]->[/bold] {escape(sentence)}", 3)
    console.print()


def _say(console: Console, markup: str, indent: int) -> None:
    """A line; on a terminal it is broken between words, and goes on below its own text."""
    if not console.is_terminal:
        return console.print(markup, soft_wrap=True)
    first, *rest = Text.from_markup(markup).wrap(console, console.width - indent)
    for line in (first, *(Text(" " * indent) + part for part in rest)):
        console.print(line, soft_wrap=True)


def sentences(launch: LaunchTrace) -> Iterator[str]:
    """The readings of a launch, or that there is nothing to say."""
    sentences = readings(launch)
    for reading in sentences[:4]:
        yield reading.place(launch.file) + reading.text
    if not any(reading.wasted for reading in sentences):
        yield FINE
    if more := excess(launch):
        yield more


def _table(console: Console, launch: LaunchTrace, items: list[LineCounts | str], widths: dict[str, int]) -> Table:
    title = f"{launch.kernel}   {launch.file}   grid {_size(launch.grid)}   block {_size(launch.block)}"
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("line", justify="right", no_wrap=True)
    others = _others(widths)
    console.width = max(console.width, others + SOURCE)  # a narrower terminal breaks lines, and no unit is lost
    table.add_column("source", no_wrap=True, max_width=console.width - others)
    for name, width in widths.items():
        table.add_column(name, justify="left" if name == "access" else "right", no_wrap=True, min_width=width)
    narrow = len(widths) < len(COLUMNS)
    for item in items:
        if isinstance(item, LineCounts):
            _add(table, item, widths, narrow)
        else:
            table.add_row("", Text(item.strip() if narrow else item, style="dim"))
    return table


def _others(widths: dict[str, int]) -> int:
    """Characters besides the source: the line number, the columns, two between any two."""
    return 5 + sum(widths.values()) + 2 * (len(widths) + 1)


def _left_out(widths: dict[str, int], room: int, quiet: bool) -> list[str]:
    """The columns without which the table fits, if some have to go. quiet: nothing goes to shared memory."""
    left: list[str] = []
    for name in ("conflicts", *NARROW) if quiet else NARROW:
        if _others({n: width for n, width in widths.items() if n not in left}) + SOURCE > room:
            left.append(name)
    return left


def _widths(lines: list[LineCounts]) -> dict[str, int]:
    """The width of each column right of the source: that of its longest text, and its own at least."""
    rows = [(_warps(line), *cells) for line in lines for cells in ([_cells(t) for t in line.traffic] or [()])]
    widths = dict(COLUMNS)
    for i, name in enumerate(COLUMNS):
        texts = (Text.from_markup(row[i]).plain for row in rows if i < len(row))
        widths[name] = max(widths[name], *(len(text) for text in texts), 0)
    return widths


def _warps(line: LineCounts) -> str:
    split = f"[magenta]{line.divergent:,} split[/magenta] " if line.divergent else ""
    return f"{split}{line.warps:,}"


def _size(triple: tuple[int, int, int]) -> str:
    return "x".join(map(str, triple))


def _chosen(launch: LaunchTrace, most: int | None) -> Iterator[LineCounts | str]:
    """The lines to show, and the text of what stands in between."""
    lines = launch.lines
    if most is not None:
        costly = sorted(lines, key=lambda line: (-sum(t.cost for t in line.traffic), -line.warps))[:most]
        lines = [line for line in lines if line in costly]
    last: LineCounts | None = None
    for line in lines:
        if last is not None and last.file == line.file:
            yield from _between(launch, last, line)
        elif line.file != launch.file:
            yield f"--- {line.file}"
        yield line
        last = line


def _between(launch: LaunchTrace, last: LineCounts, line: LineCounts) -> Iterator[str]:
    """Lines without instructions, if they are few; a mark that there are some if they are many."""
    gap = range(last.number + 1, line.number)
    if len(gap) > LARGEST_GAP or line.file != launch.file:
        yield from ["\u22ee"] if gap else []
    else:
        yield from (launch.text(number) for number in gap)


def _add(table: Table, line: LineCounts, shown: Iterable[str], narrow: bool) -> None:
    """One row, and one more for each further kind of access. shown: its columns right of the source; narrow: the source
    without its indentation."""
    text = line.text.strip() if narrow else line.text.rstrip()
    source = Text(text if line.number else "(no line)", overflow="ellipsis")
    for i, traffic in enumerate(line.traffic or [None]):
        cells = dict(zip(COLUMNS, ("" if i else _warps(line), *(_cells(traffic) if traffic else ())), strict=False))
        head = (str(line.number or ""), source) if not i else ("", "")
        table.add_row(*head, *(cells.get(name, "") for name in shown))


def _cells(traffic: Traffic) -> tuple[str, ...]:
    """Access, requests, sectors or passes per request, efficiency, conflicts, bytes."""
    style = STYLES[traffic.verdict]
    what = _name(traffic)
    if traffic.space not in ("global", "shared"):
        return f"[{style}]{escape(what)}[/]", f"{traffic.requests:,}", "", "", "", bytes_text(traffic.moved)
    per = f"{number(traffic.per_request)} ({number(traffic.least_per_request)})"
    conflicts = f"{traffic.conflicts:,}" if traffic.space == "shared" else ""
    note = f" {traffic.reuse:.0%} again" if traffic.verdict == "cached" else ""
    return (
        f"[{style}]{escape(what)}[/]",
        f"{traffic.requests:,}",
        f"[{style}]{per}[/]",
        f"[{style}]{percent(traffic.efficiency)}{note}[/]",
        f"[{style}]{conflicts}[/]",
        bytes_text(traffic.moved),
    )


def _name(traffic: Traffic) -> str:
    """load x 32 bit; TMA load x 8.0 KiB."""
    if traffic.space == "bulk":
        return f"TMA {traffic.operation} {traffic.argument} {bytes_text(traffic.size)}"
    return f"{traffic.operation} {traffic.argument} {8 * traffic.size} bit"


def summary(launch: LaunchTrace) -> Iterator[tuple[str, str]]:
    """Name and text of each figure of a launch."""
    warps, threads = sum(line.warps for line in launch.lines), sum(line.threads for line in launch.lines)
    lanes = threads / warps if warps else 0
    yield "instructions", f"{warps:,} of warps (PTX), {number(lanes)} of 32 threads active on average"
    for operations in (("load",), ("store",), ("atomic", "reduction"), ("copy",)):
        if requests := launch.total("requests", "global", *operations):
            sectors, used = launch.total("sectors", "global", *operations), launch.total("used", "global", *operations)
            yield (
                "global " + operations[0],
                f"{requests:,} requests, {sectors:,} sectors ({number(sectors / requests)} per request), "
                f"{bytes_text(32 * sectors)} moved for {bytes_text(used)}",
            )
    for operation in ("load", "store"):
        if tiles := launch.total("requests", "bulk", operation):
            yield f"TMA {operation}", f"{tiles:,} copies, {bytes_text(launch.total('moved', 'bulk', operation))}"
    if passes := launch.total("wavefronts", "shared"):
        conflicts = launch.total("conflicts", "shared")
        yield (
            "shared",
            f"{launch.total('requests', 'shared'):,} requests, {passes:,} passes, {conflicts:,} bank conflicts",
        )
    if launch.needed:
        yield "moved", f"{bytes_text(launch.moved)} by requests; the call has to move {bytes_text(launch.needed)}"
    branches, divergent = sum(line.branches for line in launch.lines), sum(line.divergent for line in launch.lines)
    yield "branches", f"{branches:,} of warps, {divergent:,} divergent"
    yield from _occupancy(launch)


def _occupancy(launch: LaunchTrace) -> Iterator[tuple[str, str]]:
    need, fits = launch.resources, launch.occupancy()
    if need is None or fits is None:
        return
    shared = need.shared + launch.dynamic_shared
    what = f"{need.registers} registers per thread, {bytes_text(shared)} of shared memory, {launch.threads} threads"
    resident = f"{counted(fits.blocks, 'blocks')}, {counted(fits.warps, 'warps')} per multiprocessor (H200)"
    yield "occupancy", f"{fits.fraction:.0%}: {resident}, limited by {fits.limited_by}; a block takes {what}"
