"""The report in Markdown: the picture, the best of each backend, and the ladder of every workload."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from kernelmux.perf import files, picture, plan, report, results, roofline
from kernelmux.perf.report import Group, Row
from kernelmux.registry import catalog
from kernelmux.registry.errors import KernelmuxError

LEGEND = (
    "Median device time of single calls with a cold L2 cache, after a rest (CUDA events, random normal inputs, every"
    " output checked); floor: the least time that the ceilings of the same run allow; held: once power and clock have"
    " settled under calls back to back; graph: per call inside a CUDA graph; host: of the Python call alone."
)
NOT_RESTED = (
    " Rows without a held time were timed straight after calls back to back, when a GPU at its power limit has lowered"
    " its clock: their matrix products and attention look further from the floor than they are."
)


def write(found: results.Results, folder: Path, name: str) -> None:
    """Write the report and its pictures, <name>.md, .svg and .png."""
    drawn = bool(found["ceilings"]) and picture.draw(found, folder / name)
    files.write(folder / f"{name}.md", whole(found, f"{name}.svg" if drawn else ""))


def whole(found: results.Results, image: str) -> str:
    """The text of a report; `image` is the file name of its picture, if it has one."""
    rows = found["rows"]
    busy = report.busy(rows, found.get("overhead", ()))
    parts = [f"# Performance on {found['machine'].get('name', 'an unknown machine')}, {found['date']}"]
    parts.append(f"{report.where(found['machine'])}\n\n`{found['command']}`")
    parts += [f"**{_sentence(busy)}**"] if busy else []
    if found["ceilings"]:
        parts.append(_sentence(report.roofs(found["ceilings"])) + "\n\n" + legend(rows))
    parts += [f"![roofline]({image})"] if image else []
    parts += [best_table(rows)] if found["ceilings"] else []
    parts += [ladder(group) for group in report.groups(rows)]
    parts += [_hints()] if found["ceilings"] else []
    parts += [_overhead(found["overhead"])] if found.get("overhead") else []
    parts += [_resources(found["resources"])] if found.get("resources") else []
    return "\n\n".join(parts) + "\n"


def legend(rows: list[Row]) -> str:
    """What the columns mean; rows of a record may be older than the rest before the samples."""
    return LEGEND if all(r.get("held_us") for r in rows if r["status"] == "ok") else LEGEND + NOT_RESTED


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """A Markdown table; every column but the first is aligned to the right."""
    lines = [_line(head), "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join([*lines, *(_line(cells) for cells in body)])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def ladder(group: Group) -> str:
    """The variants of one workload, each against the floor, torch, and the rung before it."""
    head = ["variant", "us", "±", "rate", "of floor", "times torch", "times rung", "held us", "host us", "graph us"]
    head += ["bound", "advice"]
    return f"### {report.heading(group)}\n\n" + table(head, (_ladder_cells(group, row) for row in group.rows))


def _ladder_cells(group: Group, row: Row) -> list[str]:
    name = f"**{report.label(row)}**" if group.leads(row) else report.label(row)
    if row["status"] == "failed":
        return [name, "FAILED", *[""] * 9, row["error"].splitlines()[0]]
    return [
        name,
        report.microseconds(row["median_us"]),
        report.spread(row),
        report.rate(row),
        report.percent(row.get("share")),
        report.times(group.times_torch(row)),
        report.times(group.times_previous(row)),
        report.microseconds(row.get("held_us")),
        report.microseconds(row.get("host_us")),
        report.microseconds(row.get("graph_us")),
        row.get("bound", ""),
        row.get("advice", ""),
    ]


def large_groups(rows: list[Row]) -> list[Group]:
    """Per operator the group that stands for it: its largest workload, bf16 where there is a choice."""
    found: dict[str, Group] = {}
    for group in report.groups(rows):
        known = found.get(group.op)
        if group.good and (known is None or _weight(group) > _weight(known)):
            found[group.op] = group
    return list(found.values())


def _weight(group: Group) -> tuple[bool, bool, float, float]:
    row = group.good[0]
    try:
        is_large = plan.large(catalog.spec(group.op)).text == group.workload
    except KernelmuxError:
        is_large = False
    return is_large, group.dtype == "bf16", row["flops"], row["bytes"]


def backends_of(rows: list[Row]) -> list[str]:
    """Backends in order of priority."""
    names = dict.fromkeys(row["backend"] for row in rows)
    return sorted(names, key=plan.priority)


def best_table(rows: list[Row]) -> str:
    """Per operator the best variant of each backend: time and share of the floor."""
    names = backends_of(rows)
    head = ("operator", "workload", "floor us", *names)
    return table(head, (_best_cells(group, names) for group in large_groups(rows)))


def _best_cells(group: Group, names: list[str]) -> list[str]:
    best = group.best
    assert best is not None
    cells = [f"`{group.op}`", f"{group.workload} {group.dtype}", report.microseconds(best.get("floor_us"))]
    for name in names:
        row = group.best_of(name)
        text = "-" if row is None else f"{report.microseconds(row['median_us'])} us, {report.percent(row.get('share'))}"
        cells.append(f"**{text}**" if row is not None and group.leads(row) else text)
    return cells


def best_tables() -> str:
    """The same for every recorded GPU, for a document: current rows only, and how many were left out."""
    parts = []
    for record in results.recorded():
        fresh = [row for row in record.rows if not row["stale"]]
        left = len(record.rows) - len(fresh)
        note = f" Left out, because their source has changed since: {left} rows." if left else ""
        where = report.where(record.results["machine"])
        intro = f"{_sentence(record.title)[:-1]} ({where}); best variant and share of the floor.{note}"
        parts.append(f"{intro}\n\n{best_table(fresh)}" if fresh else intro)
    return "\n\n".join(parts) or "No GPU has been recorded yet: `nox -s perf -- --record` on one."


def _hints() -> str:
    """What the advice means, with its thresholds."""
    lines = [
        f"- {bound}: " + ", ".join(f"{text!r} from {least:.0%}" for least, text in steps)
        for bound, steps in roofline.HINTS.items()
    ]
    intro = (
        "Advice by what binds the call and its share of the floor. A call under"
        f" {roofline.LAUNCH_US:.0f} us is launch bound; a spread beyond {roofline.NOISY:.0%} is noise."
    )
    return "\n".join(["## Advice", "", intro, "", *lines])


def _overhead(rows: list[dict[str, Any]]) -> str:
    body = [
        (f"{r['op']} {r['label']}", f"{r['direct_us']:.2f}", f"{r['through_us']:.2f}") for r in rows if "error" not in r
    ]
    return "## Host time of one call, us\n\n" + table(("small input", "implementation", "through kx.op"), body)


def _resources(rows: list[dict[str, Any]]) -> str:
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


def _resource_cells(row: dict[str, Any]) -> list[str]:
    name = f"{row['op']} {row['label']}"
    if row["error"]:
        return [name, f"FAILED: {row['error']}", *[""] * 8]
    numbers = (row["registers"], row["spills"], row["shared"] + row["dynamic"], row["threads"], row["blocks"])
    return [name, row["kernel"], row["dtype"], *map(str, numbers), f"{row['occupancy']:.0%}", row["limited_by"]]
