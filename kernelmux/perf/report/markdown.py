"""The report in Markdown: the picture, the best of each backend, and the ladder of every workload."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from kernelmux.perf.pictures import roofline_picture
from kernelmux.perf.record import history
from kernelmux.perf.record.run_file import KernelNeed, Moved, Overhead, Results
from kernelmux.perf.report import beside, shares
from kernelmux.perf.rows import output_files, roofline
from kernelmux.perf.rows.row_result import RowResult, Timed
from kernelmux.perf.rows.thresholds import LAUNCH_US
from kernelmux.perf.wording import wording
from kernelmux.perf.wording.groups import ResultGroup, backends_of, groups, large_groups
from kernelmux.registry.util import text_tables

LEGEND = (
    "Median device time of single calls with a cold L2 cache, after a rest (CUDA events, random normal inputs, every"
    " output checked); floor: the least time that the ceilings of the same run allow; held: once power and clock have"
    " settled under calls back to back; graph: per call inside a CUDA graph; host: of the Python call alone."
)
NOT_RESTED = (
    " Rows without a held time were timed straight after calls back to back, when a GPU at its power limit has lowered"
    " its clock: their matrix products and attention look further from the floor than they are."
)


def write(results: Results, folder: Path, name: str) -> None:
    """Write the report and its pictures, <name>.md, .svg and .png."""
    drawn = results.ceilings is not None and roofline_picture.draw(results, folder / name)
    output_files.write(folder / f"{name}.md", whole(results, f"{name}.svg" if drawn else ""))


def whole(results: Results, image: str) -> str:
    """The text of a report; `image` is the file name of its picture, if it has one."""
    busy = wording.busy(results.rows, results.overhead)
    parts = [f"# Performance on {results.machine.name}, {results.date}"]
    parts.append(f"{wording.where(results.machine)}\n\n`{results.command}`\n\n{_sentence(wording.tested(results))}")
    parts += [f"**{_sentence(error)}**" for error in results.errors]
    parts += [_sentence(left) for left in wording.left_out(results)]
    parts += [f"**{_sentence(busy)}**"] if busy else []
    parts += [_sentence(results.usage)] if results.usage else []
    if results.ceilings:
        parts.append(_sentence(wording.roofs(results.ceilings)) + "\n\n" + legend(results.timed))
    parts += [f"![roofline]({image})"] if image else []
    parts += [best_table(results.rows)] if results.ceilings else []
    parts += [beside_table(others)] if (others := beside.lines(results.rows)) else []
    parts += [share_table(results)] if results.shares else []
    parts += [ladder(group) for group in groups(results.rows)]
    parts += [_hints()] if results.ceilings else []
    parts += [_overhead(results.overhead)] if results.overhead else []
    parts += [_resources(results.resources)] if results.resources else []
    parts += [_moved(results.moved)] if results.moved else []
    return "\n\n".join(parts) + "\n"


def legend(rows: Iterable[Timed]) -> str:
    """What the columns mean; rows of a record may be older than the rest before the samples."""
    return LEGEND if all(map(wording.rested, rows)) else LEGEND + NOT_RESTED


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """A Markdown table; every column but the first is aligned to the right."""
    return text_tables.markdown(head, body, right=head[1:])


def ladder(group: ResultGroup) -> str:
    """The variants of one workload, each against the floor, torch, and the rung before it."""
    head = ["variant", "us", "±", "rate", "of floor", "times torch", "times rung", "held us", "host us", "graph us"]
    head += ["bound", "advice"]
    return f"### {wording.heading(group)}\n\n" + table(head, (_ladder_cells(group, row) for row in group.rows))


def _ladder_cells(group: ResultGroup, row: RowResult) -> list[str]:
    name = f"**{row.label}**" if group.leads(row) else row.label
    return [name, *(_timed_cells(group, row) if isinstance(row, Timed) else _failed_cells(row))]


def _failed_cells(row: RowResult) -> list[str]:
    return [row.status.upper(), *[""] * 9, row.error.partition("\n")[0]]


def _timed_cells(group: ResultGroup, row: Timed) -> list[str]:
    return [
        wording.microseconds(row.median_us),
        wording.spread(row),
        wording.rate(row),
        wording.share(row),
        wording.times(group.times_torch(row)),
        wording.times(group.times_previous(row)),
        wording.microseconds(row.held_us),
        wording.microseconds(row.host_us),
        wording.microseconds(row.graph_us),
        row.point.bound if row.point else "",
        wording.advice(row),
    ]


def best_table(rows: Iterable[RowResult]) -> str:
    """Per operator the best variant of each backend: time and share of the floor."""
    rows = tuple(rows)
    names = backends_of(rows)
    head = ("operator", "workload", "floor us", *names)
    return table(head, (_best_cells(group, names) for group in large_groups(rows)))


def _best_cells(group: ResultGroup, names: list[str]) -> list[str]:
    cells = [f"`{group.op}`", f"{group.workload} {group.dtype}", wording.floor(group.best)]
    for name in names:
        row = group.best_of(name)
        if row is None:
            cells.append("-")
            continue
        text = f"{wording.microseconds(row.median_us)} us, {wording.share(row)}"
        cells.append((f"**{text}**" if group.leads(row) else text) + (", stale" if row.stale else ""))
    return cells


def beside_table(lines: Iterable[Sequence[str]]) -> str:
    """Our backends beside other libraries."""
    return "## Beside other libraries\n\n" + table(beside.HEAD, lines)


def share_table(results: Results) -> str:
    """Our backends on random shapes, per family."""
    return f"## {_sentence(shares.TITLE)[:-1]}\n\n" + table(shares.HEAD, shares.lines(results.shares))


def best_tables() -> str:
    """The same for every recorded GPU, for a document."""
    parts = []
    for record in history.recorded():
        note = " Stale: what it launches has changed since." if any(row.stale for row in record.rows) else ""
        where = wording.where(record.results.machine)
        intro = f"{_sentence(record.title)[:-1]} ({where}); best variant and share of the floor.{note}"
        parts.append(f"{intro}\n\n{best_table(record.rows)}")
    return "\n\n".join(parts) or "No GPU is on record yet: run `nox -s perf -- --record --into-checkout` on one."


def _hints() -> str:
    """What the advice means, with its thresholds."""
    lines = [
        f"- {bound}: " + ", ".join(f"{text!r} from {least:.0%}" for least, text in steps)
        for bound, steps in roofline.HINTS.items()
    ]
    intro = (
        "Advice by what binds the call and its share of the floor. A call under"
        f" {LAUNCH_US:.0f} us is launch bound; a spread beyond {roofline.NOISY:.0%} is noise. A time does not tell how a"
        " kernel accesses memory: `kernelmux emulate` counts sectors and bank conflicts per line, `nox -s profile` asks"
        " ncu."
    )
    return "\n".join(["## Advice", "", intro, "", *lines])


def _overhead(rows: Iterable[Overhead]) -> str:
    body = [
        (f"{r.op} {r.label}", f"{r.direct_us:.2f}", f"{r.through_us:.2f}", *wording.surcharges(r))
        for r in rows
        if not r.error
    ]
    head = ("small input", "implementation", "kx.op", *wording.SURCHARGES)
    return "## Host time of one call, us\n\n" + table(head, body)


def _resources(rows: Iterable[KernelNeed]) -> str:
    head = (
        "variant",
        "kernel",
        "dtype",
        "registers",
        "spills",
        "shared",
        "threads",
        "blocks/SM",
        "occupancy",
        "limited by",
    )
    return "## Kernels as compiled for sm_90a\n\n" + table(head, map(_resource_cells, rows))


def _moved(rows: Iterable[Moved]) -> str:
    head = ("variant", "call", "moved", "has to move", "times")
    return "## Bytes of a small call, counted on the emulator\n\n" + table(head, map(wording.moved, rows))


def _resource_cells(row: KernelNeed) -> list[str]:
    name = f"{row.op} {row.label}"
    if row.error:
        return [name, f"FAILED: {row.error}", *[""] * 8]
    numbers = (row.registers, row.spills, row.shared + row.dynamic, row.threads, row.blocks)
    return [name, row.kernel, row.dtype, *map(str, numbers), f"{row.occupancy:.0%}", row.limited_by]
