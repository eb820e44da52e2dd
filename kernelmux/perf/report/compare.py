"""Two runs side by side: which rows became faster or slower by more than noise."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernelmux.perf.record.run_file import Results
from kernelmux.perf.rows.row_result import Timed
from kernelmux.perf.wording import wording
from kernelmux.perf.wording.columns import Columns
from kernelmux.perf.wording.groups import groups

RELATIVE, ABSOLUTE_US = 0.03, 1.0  # a change counts beyond both, the spread of either run, twice its noise, and A/A


@dataclass(frozen=True)
class Change:
    """One row, earlier and now; ratio: now / earlier."""

    row: Timed
    before_us: float
    now_us: float
    noise: float

    @property
    def ratio(self) -> float:
        return self.now_us / self.before_us

    @property
    def verdict(self) -> str:
        """ "slower", "faster" or "same"."""
        delta = self.now_us - self.before_us
        if abs(delta) <= ABSOLUTE_US or abs(self.ratio - 1) <= max(RELATIVE, self.noise):
            return "same"
        return "slower" if delta > 0 else "faster"


def changes(earlier: Results, now: Results) -> list[Change]:
    """The rows that both runs have."""
    before = {row.key: row for row in earlier.timed}
    apart = 2 * max(run.ceilings.noise if run.ceilings else 0.0 for run in (earlier, now))
    noise = _noise(earlier) | _noise(now)
    changed = []
    for row in now.timed:
        if old := before.get(row.key):
            known = max(old.spread, row.spread, apart, noise.get(row.group, 0.0))
            changed.append(Change(row, old.median_us, row.median_us, known))
    return changed


def _noise(results: Results) -> dict[tuple[str, str, str], float]:
    """The A/A noise of each group that has one."""
    return {(g.op, g.workload, g.dtype): g.noise for g in groups(results.rows) if g.noise is not None}


def show(console: Console, earlier: Results, now: Results) -> int:
    """Print what changed; return how many rows became slower."""
    compared = changes(earlier, now)
    moved = [c for c in compared if c.verdict != "same"]
    if earlier.machine.name != now.machine.name:
        console.print(
            "the earlier run was on another machine: the ratios compare machines, not kernels", style="yellow"
        )
    if moved:
        console.print(_table(console, moved))
    slower = sum(c.verdict == "slower" for c in moved)
    counts = f"{slower} slower, {len(moved) - slower} faster, {len(compared) - len(moved)} within noise"
    console.print(f"compared {len(compared)} rows: {counts}")
    return slower


COLUMNS = Columns(("", "before us", "now us", "now / before", "verdict"), ("", "verdict"), ("now / before",))


def _table(console: Console, moved: list[Change]) -> Table:
    rows = []
    for c in sorted(moved, key=lambda c: -c.ratio):
        times = (wording.microseconds(c.before_us), wording.microseconds(c.now_us))
        cells = (f"  {c.row.name}", *times, f"{c.ratio:.3f}", c.verdict)
        rows.append(([Text(cell) for cell in cells], "red" if c.verdict == "slower" else "green"))
    return COLUMNS.table(console, rows, "changes")
