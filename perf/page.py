"""The report as one HTML page that needs nothing else: charts inside, no scripts, no fonts, no links to elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from kernelmux.perf import aa, charts, compare, files, markdown, picture, report, results, roofline
from kernelmux.perf.report import Group, Row
from kernelmux.registry import catalog
from kernelmux.registry.errors import KernelmuxError

TEMPLATE = Path(__file__).with_name("page.html")
OPTIONAL = ("idea", "stale", "mhz", "held_us", "held_mhz", "graph_us", "host_us", "again_us", "advice", "share")
Context = dict[str, Any]


def write(found: results.Results, earlier: results.Results | None, path: Path) -> None:
    """Write the page of a run or a record; with `earlier`, what changed since is part of it."""
    files.write(path, html(found, earlier))


def html(found: results.Results, earlier: results.Results | None = None) -> str:
    """The text of the page."""
    made = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    made.filters.update(
        us=report.microseconds, spread=report.spread, added=report.added, percent=_percent, times=report.times
    )
    return made.from_string(TEMPLATE.read_text(encoding="utf-8")).render(context(found, earlier))


def _percent(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:.{digits}%}".replace("%", " %")


def context(found: results.Results, earlier: results.Results | None = None) -> Context:
    """Everything that the template names."""
    rows, groups = found["rows"], report.groups(found["rows"])
    backends = markdown.backends_of([row for group in groups for row in group.rows])
    return {
        "machine": found["machine"],
        "date": found["date"],
        "command": found["command"],
        "facts": facts(found),
        "ceilings": ceilings(found["ceilings"]) if found["ceilings"] else [],
        "backends": [{"name": name, "colour": picture.colour(name)} for name in backends],
        "overview": overview(rows, backends) if found["ceilings"] else [],
        "charts": _charts(rows, found["ceilings"]),
        "ops": operators(groups, bool(found["ceilings"])),
        "noise": aa.noise(rows),
        "unknown": report.UNKNOWN,
        "held": any(row.get("held_us") for row in rows),
        "not_rested": sum(row["status"] == "ok" and not row.get("held_us") for row in rows),
        "changes": compare.changes(earlier, found) if earlier else [],
        "compared": earlier["date"] if earlier else "",
        "failed": [row for row in rows if row["status"] == "failed"],
        "skipped": sorted({f"{report.label(r)}: {r['error']}" for r in rows if r["status"] == "skipped"}),
        "errors": found.get("errors", []),
        "busy": report.busy(rows, found.get("overhead", ())),
        "stale": sum(bool(row.get("stale")) for row in rows),
        "hints": roofline.HINTS,
        "overhead": [row for row in found.get("overhead", []) if "error" not in row],
        "resources": found.get("resources", []),
    }


def facts(found: results.Results) -> list[tuple[str, str]]:
    """What it ran on, as labels and values."""
    machine, told = found["machine"], []
    if machine.get("kind") == "cuda":
        told = [
            ("device", machine["name"]),
            ("compute capability", machine.get("capability", "")),
            ("multiprocessors", str(machine.get("processors", ""))),
            ("memory", f"{machine.get('memory', 0) / 2**30:.0f} GiB, L2 {machine.get('l2', 0) / 2**20:.0f} MiB"),
            ("power limit", machine.get("power_limit", "")),
            ("driver, CUDA", f"{machine.get('driver', '?')}, {machine.get('cuda', '?')}"),
        ]
    else:
        told = [("CPU", f"{machine.get('name', 'unknown')}, {machine.get('threads', '?')} threads")]
    versions = [(name, version) for name, version in machine.get("versions", {}).items()]
    told += [("Python", machine.get("python", "")), *versions, ("system", machine.get("platform", ""))]
    return [(label, value) for label, value in told if value]


def ceilings(told: Context) -> list[tuple[str, str, str]]:
    """The measured roofs: name, value with unit, how."""
    found = [
        ("device memory, copy", f"{told['copy'] / 1e9:.0f} GB/s", "read + written bytes of a large copy"),
        ("device memory, read", f"{told['read'] / 1e9:.0f} GB/s", "a large sum"),
        ("host link", f"{told['host'] / 1e9:.1f} GB/s", "pinned host memory to the device"),
    ]
    how = "torch's product of random normal matrices, the better of 4096³ and 8192³"
    found += [(f"matrix product, {k}", f"{v / 1e12:.0f} TFLOP/s", how) for k, v in told["matmul"].items()]
    if told.get("held"):
        held = "8192³, once power and clock have settled under it"
        found.append(("matrix product, bf16, held", f"{told['held'] / 1e12:.0f} TFLOP/s", held))
    return [
        *found,
        ("two events, nothing between", f"{told['gap'] * 1e6:.1f} µs", "what a timed region costs by itself"),
    ]


def _charts(rows: list[Row], roofs: Context | None) -> Context:
    """The two charts on top; empty where there is nothing to draw or nothing to draw with."""
    groups = charts.large(rows) if roofs and charts.available() else []
    if not roofs or not groups:
        return {"roofline": "", "shares": ""}
    drawn = {"roofline": charts.roofline(groups, roofs), "shares": charts.shares(groups)}
    return {name: Markup(svg) for name, svg in drawn.items()}


def overview(rows: list[Row], backends: list[str]) -> list[Context]:
    """Per operator the best variant of each backend on its largest workload."""
    return [
        {"group": group, "floor": group.best or {}, "best": [group.best_of(name) for name in backends]}
        for group in markdown.large_groups(rows)
    ]


def operators(groups: list[Group], drawn: bool) -> list[Context]:
    """A section per operator with its groups; the first one shown is the one that stands for it."""
    largest = {g.op: g for g in markdown.large_groups([row for g in groups for row in g.rows])}
    found: dict[str, Context] = {}
    for number, group in enumerate(groups):
        section = found.setdefault(group.op, {"op": group.op, "groups": [], **_described(group.op)})
        main = largest.get(group.op)
        leads = main is not None and report.place(group.rows[0]) == report.place(main.rows[0])
        section["groups"].append(_section(group, f"ladder{number}" if drawn else "") | {"open": leads})
    return list(found.values())


def _described(op: str) -> Context:
    try:
        spec = catalog.spec(op)
    except KernelmuxError:
        return {"summary": "", "math": ""}
    return {"summary": spec.summary, "math": spec.math}


def _section(group: Group, name: str) -> Context:
    good, best = group.good, group.best
    drawable = bool(name and good and all("share" in row for row in good) and charts.available())
    svg = Markup(charts.ladder(group, name)) if drawable else ""
    work = f"{report.quantity(best['bytes'], 'B')}, {report.quantity(best['flops'], 'flop')}" if best else ""
    rows = [{"row": dict.fromkeys(OPTIONAL) | row, **_compared(group, row)} for row in group.rows]
    return {"group": group, "svg": svg, "work": work, "best": best, "rows": rows}


def _compared(group: Group, row: Row) -> Context:
    good = row["status"] == "ok"
    return {
        "label": report.label(row),
        "colour": picture.colour(row["backend"]),
        "leads": group.leads(row),
        "rate": report.rate(row).partition(" ")[0],  # the unit stands in the head
        "torch": group.times_torch(row) if good else None,
        "rung": group.times_previous(row) if good else None,
    }
