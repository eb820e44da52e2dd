"""What was measured, as a table, as a record and in Markdown."""

from __future__ import annotations

import json
import math
import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from kernelmux.emulator.validation.speed.measuring import Times

RECORD = Path(__file__).parents[1] / "records" / "speed.json"
THEIRS, OURS = "theirs", "ours"
TOTAL = "total"


def record(times: Sequence[Times], command: str, repeat: int) -> dict[str, Any]:
    """The figures in milliseconds, with the machine that they are from."""
    machine = {"cpu": cpu(), "cores": os.cpu_count(), "python": platform.python_version(), "numpy": np.__version__}
    return {
        "command": command,
        "machine": machine,
        "repeat": repeat,
        "unit": "ms; best and median of the launches after the first; first: compiling and the first launch",
        "times": [_figures(each) for each in times],
    }


def _figures(each: Times) -> dict[str, Any]:
    named = {"case": each.case, "mode": each.mode, "implementation": each.implementation}
    if each.wrong:
        return named | {"wrong": each.wrong}
    return named | {name: round(1e3 * getattr(each, name), 3) for name in ("best", "median", "first")}


def text(record: dict[str, Any]) -> str:
    """A record as JSON, a line for each time."""
    head = json.dumps({key: value for key, value in record.items() if key != "times"}, indent=1)
    lines = ",\n".join(json.dumps(each) for each in record["times"])
    return f'{head[:-2]},\n "times": [\n{lines}\n]}}\n'


def cpu() -> str:
    """The model of this machine's processor."""
    info = Path("/proc/cpuinfo")
    model = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.is_file() else None
    return model[1] if model else platform.processor() or platform.machine()


class Figures:
    """The milliseconds of a record, by case, mode and implementation."""

    def __init__(self, record: dict[str, Any], which: str = "best") -> None:
        self.ms: dict[tuple[str, str, str], float] = {
            (x["case"], x["mode"], x["implementation"]): x.get(which, math.nan) for x in record["times"]
        }
        self.cases = list(dict.fromkeys(case for case, *_ in self.ms))
        self.modes = list(dict.fromkeys(mode for _, mode, _ in self.ms))
        self.compared = any(side == THEIRS for *_, side in self.ms)

    def of(self, case: str, mode: str, side: str) -> float:
        """One number; of all cases together for the case "total"; NaN where a result was wrong."""
        if case == TOTAL:
            return math.fsum(value for (_, *key), value in self.ms.items() if key == [mode, side])
        return self.ms[case, mode, side]

    def ratio(self, case: str, mode: str) -> float:
        """How many times as long the other implementation takes."""
        return self.of(case, mode, THEIRS) / self.of(case, mode, OURS)


def table(record: dict[str, Any]) -> Table:
    """A row for each case: milliseconds in both modes, and the ratio."""
    figures = Figures(record)
    made = Table("case")
    for mode in figures.modes:
        for side in _sides(figures):
            made.add_column(f"{mode}\n{side}, ms", justify="right")
        if figures.compared:
            made.add_column(f"{mode}\nratio", justify="right")
    for case in (*figures.cases, TOTAL):
        cells = [cell for mode in figures.modes for cell in _cells(figures, case, mode)]
        made.add_row(escape(case), *cells, style="bold" if case == TOTAL else None)
        if case == figures.cases[-1]:
            made.add_section()
    return made


def _sides(figures: Figures) -> tuple[str, ...]:
    return (THEIRS, OURS) if figures.compared else (OURS,)


def _cells(figures: Figures, case: str, mode: str) -> list[str]:
    numbers = [figures.of(case, mode, side) for side in _sides(figures)]
    cells = ["[bold red]wrong[/]" if math.isnan(number) else f"{number:,.1f}" for number in numbers]
    if figures.compared:
        ratio = figures.ratio(case, mode)
        cells.append("" if math.isnan(ratio) else f"[{'green' if ratio >= 1 else 'red'}]{ratio:.1f}x[/]")
    return cells


def section(file: Path = RECORD) -> str:
    """A record of a comparison in Markdown: the totals, and the three cases that take longest."""
    record = json.loads(file.read_text())
    figures, machine = Figures(record), record["machine"]
    slowest = sorted(figures.cases, key=lambda case: figures.of(case, "full", OURS), reverse=True)[:3]
    lines = [_sentence(figures, record, machine), "", "| ms per launch | " + " | ".join(_headings(figures)) + " |"]
    lines.append("|---" * (1 + len(figures.modes) * 3) + "|")
    for case in (*slowest, TOTAL):
        cells = [cell for mode in figures.modes for cell in _plain(figures, case, mode)]
        name = f"`{case}`" if case != TOTAL else f"**all {len(figures.cases)}**"
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _sentence(figures: Figures, record: dict[str, Any], machine: dict[str, Any]) -> str:
    parts = [
        f"{figures.of(TOTAL, mode, OURS):,.0f} ms instead of {figures.of(TOTAL, mode, THEIRS):,.0f} ms in {mode} mode "
        f"({figures.ratio(TOTAL, mode):.1f}x)"
        for mode in figures.modes
    ]
    return (
        f"One launch of each of its {len(figures.cases)} cases takes {' and '.join(parts)}: the best of "
        f"{record['repeat']} launches in turns, after a first one, on one core ({machine['cpu']}, "
        f"Python {machine['python']}, numpy {machine['numpy']})."
    )


def _headings(figures: Figures) -> list[str]:
    return [f"{what}, {mode}" for mode in figures.modes for what in ("prototype", "here", "ratio")]


def _plain(figures: Figures, case: str, mode: str) -> list[str]:
    return [f"{figures.of(case, mode, side):,.1f}" for side in (THEIRS, OURS)] + [f"{figures.ratio(case, mode):.1f}"]
