"""The report as one HTML page that needs nothing else: charts inside, no scripts, no fonts, no links to elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from markupsafe import Markup

from kernelmux.perf.pictures import charts, figures, roofline_picture, themes
from kernelmux.perf.record import history
from kernelmux.perf.record.run_file import Results
from kernelmux.perf.report import compare, shares
from kernelmux.perf.rows import output_files, roofline
from kernelmux.perf.rows.machine import MeasuringMachine
from kernelmux.perf.rows.roofline import Ceilings
from kernelmux.perf.rows.row_result import FAILED, SKIPPED, WRONG, RooflinePoint, RowResult, Timed
from kernelmux.perf.wording import noise, wording
from kernelmux.perf.wording.groups import UNKNOWN, ResultGroup, backends_of, drawable, groups, large_groups
from kernelmux.registry import catalog
from kernelmux.registry.errors import KernelmuxError
from kernelmux.registry.util import html_pages

TEMPLATE = Path(__file__).with_name("page.html")
Context = dict[str, Any]


def write(results: Results, earlier: Results | None, path: Path) -> None:
    """Write the page of a run or a record; with `earlier`, what changed since is part of it."""
    output_files.write(path, html(results, earlier))


def html(results: Results, earlier: Results | None = None) -> str:
    """The text of the page."""
    filters = {
        "us": wording.microseconds,
        "spread": wording.spread,
        "surcharges": wording.surcharges,
        "percent": _percent,
        "times": wording.times,
    }
    return html_pages.rendered(TEMPLATE, context(results, earlier), filters)


def _percent(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:.{digits}%}".replace("%", " %")


def context(results: Results, earlier: Results | None = None) -> Context:
    """Everything that the template names."""
    together = groups(results.rows)
    backends = backends_of(row for group in together for row in group.rows)
    return {
        "machine": results.machine,
        "date": results.date,
        "command": results.command,
        "facts": facts(results.machine),
        "ceilings": ceilings(results.ceilings) if results.ceilings else [],
        "backends": [{"name": name, "colour": _colour(name)} for name in backends],
        "overview": overview(results.rows, backends) if results.ceilings else [],
        "charts": _charts(results),
        "colours": Markup(themes.style()),
        "ops": operators(together, results.ceilings is not None),
        "noise": noise.noise(results.rows),
        "unknown": UNKNOWN,
        "held": any(row.held_us for row in results.timed),
        "not_rested": sum(not wording.rested(row) for row in results.timed),
        "changes": compare.changes(earlier, results) if earlier else [],
        "compared": earlier.date if earlier else "",
        "failed": [row for row in results.rows if row.status in (FAILED, WRONG)],
        "skipped": sorted({f"{row.label}: {row.error}" for row in results.rows if row.status == SKIPPED}),
        "errors": results.errors,
        "tested": wording.tested(results),
        "usage": results.usage,
        "late": list(wording.left_out(results)),
        "busy": wording.busy(results.rows, results.overhead),
        "stale": sum(row.stale for row in results.timed),
        "hints": roofline.HINTS,
        "overhead": [row for row in results.overhead if not row.error],
        "shares": {"title": shares.TITLE, "head": shares.HEAD, "lines": shares.lines(results.shares)},
        "resources": results.resources,
        "counted": list(map(wording.moved, results.moved)),
        "recorded": recorded(results) if results.machine.kind == "cpu" else [],
        "not_drawn": not_drawn(results.rows) if results.ceilings else [],
    }


def recorded(results: Results) -> list[Context]:
    """For the page of a machine without a GPU: what is on record of the same operators on GPUs."""
    ops = {row.op for row in results.rows}
    found = []
    for known in history.recorded():
        rows = [row for row in known.rows if row.op in ops]
        names = backends_of(rows)
        told = {"title": known.title, "stale": sum(row.stale for row in rows), "overview": overview(rows, names)}
        found += [told | {"backends": [{"name": name, "colour": _colour(name)} for name in names]}] if rows else []
    return found


def not_drawn(rows: Iterable[RowResult]) -> list[str]:
    """Operators that are not under the roofline: without arithmetic, or bound by the link to the host."""
    timed = [row for row in rows if isinstance(row, Timed)]
    shown = {row.op for row in timed if row.point is not None and row.flops and row.link == "device"}
    return sorted({row.op for row in timed} - shown)


def _colour(backend: str) -> str:
    return themes.variable(roofline_picture.colour(backend))


def facts(machine: MeasuringMachine) -> list[tuple[str, str]]:
    """What it ran on, as labels and values."""
    if machine.kind == "cuda":
        told = [
            ("device", machine.name),
            ("compute capability", machine.capability),
            ("multiprocessors", str(machine.processors or "")),
            ("memory", f"{(machine.memory or 0) / 2**30:.0f} GiB, L2 {(machine.l2 or 0) / 2**20:.0f} MiB"),
            ("power limit", machine.power_limit),
            ("driver, CUDA", f"{machine.driver or '?'}, {machine.cuda or '?'}"),
        ]
    else:
        told = [("CPU", f"{machine.name}, {machine.threads or '?'} threads")]
    told += [("Python", machine.python), *machine.versions.items(), ("system", machine.platform)]
    return [(label, value) for label, value in told if value]


def ceilings(told: Ceilings) -> list[tuple[str, str, str]]:
    """The measured roofs: name, value with unit, how."""
    roofs = [
        ("device memory, copy", f"{told.copy / 1e9:.0f} GB/s", "read + written bytes of a large copy"),
        ("device memory, read", f"{told.read / 1e9:.0f} GB/s", "a large sum"),
        ("host link", f"{told.host / 1e9:.1f} GB/s", "pinned host memory to the device"),
    ]
    how = "torch's product of random normal matrices, the better of 4096³ and 8192³"
    roofs += [(f"matrix product, {k}", f"{v / 1e12:.0f} TFLOP/s", how) for k, v in told.matmul.items()]
    if told.held:
        held = "8192³, once power and clock have settled under it"
        roofs.append(("matrix product, bf16, held", f"{told.held / 1e12:.0f} TFLOP/s", held))
    return [*roofs, ("two events, nothing between", f"{told.gap * 1e6:.1f} µs", "what a timed region costs by itself")]


def _charts(results: Results) -> Context:
    """The two charts on top; empty where there is nothing to draw or nothing to draw with."""
    shown = drawable(results.rows) if results.ceilings and figures.available() else []
    if not results.ceilings or not shown:
        return {"roofline": "", "shares": ""}
    drawn = {"roofline": charts.roofline(shown, results.ceilings), "shares": charts.shares(shown)}
    return {name: Markup(svg) for name, svg in drawn.items()}


def overview(rows: Iterable[RowResult], backends: list[str]) -> list[Context]:
    """Per operator the best variant of each backend on its largest workload."""
    return [
        {"group": group, "floor": _point(group.best), "best": [_best(group, name) for name in backends]}
        for group in large_groups(rows)
    ]


def _best(group: ResultGroup, backend: str) -> Context | None:
    row = group.best_of(backend)
    return {"row": row, "leads": group.leads(row), "share": row.point.share if row.point else None} if row else None


def _point(row: Timed | None) -> RooflinePoint | None:
    return row.point if row else None


def operators(together: list[ResultGroup], drawn: bool) -> list[Context]:
    """A section per operator with its groups; the first one shown is the one that stands for it."""
    largest = {group.op: group for group in large_groups(row for group in together for row in group.rows)}
    sections: dict[str, Context] = {}
    for number, group in enumerate(together):
        section = sections.setdefault(group.op, {"op": group.op, "groups": [], **_described(group.op)})
        main = largest.get(group.op)
        leads = main is not None and group.rows[0].group == main.rows[0].group
        section["groups"].append(_section(group, f"ladder{number}" if drawn else "") | {"open": leads})
    return list(sections.values())


def _described(op: str) -> Context:
    try:
        spec = catalog.spec(op)
    except KernelmuxError:
        return {"summary": "", "math": ""}
    return {"summary": spec.summary, "math": spec.math}


def _section(group: ResultGroup, name: str) -> Context:
    good, best = group.good, group.best
    backends = {row.backend for row in good}
    ladder = len(good) > len(backends)  # one variant of each backend is in the table above already
    drawn = bool(name and ladder and all(row.point for row in good) and figures.available())
    return {
        "group": group,
        "svg": Markup(charts.ladder(group, name)) if drawn else "",
        "work": wording.work(best) if best else "",
        "floor": _point(best),
        "rows": [_line(group, row) for row in group.rows],
    }


def _line(group: ResultGroup, row: RowResult) -> Context:
    """What a table shows of a row; failed rows have a label, a colour and an error."""
    line = {"row": row, "timed": None, "label": row.label, "colour": _colour(row.backend)}
    return line | {"leads": group.leads(row)} | (_timed(group, row) if isinstance(row, Timed) else {})


def _timed(group: ResultGroup, row: Timed) -> Context:
    return {
        "timed": row,
        "again_us": row.second.again_us if row.second else None,
        "rate": wording.rate(row).partition(" ")[0],  # the unit stands in the head
        "share": row.point.share if row.point else None,
        "advice": wording.advice(row),
        "torch": group.times_torch(row),
        "rung": group.times_previous(row),
    }
