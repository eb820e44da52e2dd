"""Results as reports need them: grouped by what they compute, in ladder order, beside torch and the rung below."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kernelmux.perf.planning import plan
from kernelmux.perf.planning.plan import BASELINE, PLAIN
from kernelmux.perf.rows.row_result import SKIPPED, RowResult, Timed
from kernelmux.registry import catalog
from kernelmux.registry.errors import KernelmuxError

UNKNOWN = 0.03  # the noise of a run without A/A, for want of a measured one
LEAST = 0.01  # two rows run at different times: they can differ by this though the two timings of each agree


@dataclass(frozen=True)
class ResultGroup:
    """Rows of one operator, workload and dtype."""

    op: str
    workload: str
    dtype: str
    rows: tuple[RowResult, ...]

    @property
    def good(self) -> tuple[Timed, ...]:
        return tuple(row for row in self.rows if isinstance(row, Timed))

    @property
    def baseline(self) -> Timed | None:
        """torch's row, with which the others are compared."""
        return baseline(self.good)

    @property
    def best(self) -> Timed | None:
        return min(self.good, key=lambda row: row.median_us, default=None)

    @property
    def noise(self) -> float | None:
        """The largest difference between the two timings of a variant; None without A/A."""
        return max((row.second.apart for row in self.good if row.second), default=None)

    def leads(self, row: RowResult) -> bool:
        """Whether nothing is faster than a row by more than the noise of the two.

        A row whose A/A timings disagree cannot win: its longer time counts.
        """
        best = self.best
        if best is None or not isinstance(row, Timed):
            return False
        if row is best:
            return True
        noise = UNKNOWN if self.noise is None else max(row.apart, best.apart, LEAST)
        longer = max(row.median_us, row.second.again_us if row.second else 0.0)
        return longer <= best.median_us * (1 + noise)

    def best_of(self, backend: str) -> Timed | None:
        """The fastest variant of one backend."""
        return min((row for row in self.good if row.backend == backend), key=lambda row: row.median_us, default=None)

    def times_torch(self, row: Timed) -> float | None:
        """How many times faster than torch a row is."""
        return self.baseline.median_us / row.median_us if self.baseline else None

    def times_previous(self, row: Timed) -> float | None:
        """How many times faster than the rung before it in the same backend."""
        ladder = [other for other in self.good if other.backend == row.backend]
        at = ladder.index(row)
        return ladder[at - 1].median_us / row.median_us if at else None


def baseline(rows: Iterable[Timed]) -> Timed | None:
    """What a user of torch would write, by which "x torch" divides: the plain form, or the last rung without one."""
    torch_rows = [row for row in rows if row.backend == BASELINE]
    plain = (row for row in torch_rows if row.variant == PLAIN)
    return next(plain, torch_rows[-1] if torch_rows else None)


def groups(rows: Iterable[RowResult]) -> list[ResultGroup]:
    """Rows by what they compute, in the order in which they came; skipped rows are left out."""
    together: dict[tuple[str, str, str], list[RowResult]] = {}
    for row in rows:
        if row.status != SKIPPED:
            together.setdefault(row.group, []).append(row)
    return [ResultGroup(*key, tuple(items)) for key, items in together.items()]


def large_groups(rows: Iterable[RowResult]) -> list[ResultGroup]:
    """Per operator the group that stands for it: its largest workload, bf16 where there is a choice."""
    largest: dict[str, ResultGroup] = {}
    for group in groups(rows):
        known = largest.get(group.op)
        if group.good and (known is None or _weight(group) > _weight(known)):
            largest[group.op] = group
    return list(largest.values())


def drawable(rows: Iterable[RowResult]) -> list[ResultGroup]:
    """The same for charts, which need the point of each row under the roofs."""
    return large_groups(row for row in rows if isinstance(row, Timed) and row.point is not None)


def _weight(group: ResultGroup) -> tuple[bool, bool, float, float]:
    row = group.good[0]
    try:
        is_large = plan.large(catalog.spec(group.op)).text == group.workload
    except KernelmuxError:
        is_large = False
    return is_large, group.dtype == "bf16", row.flops, row.bytes


def backends_of(rows: Iterable[RowResult]) -> list[str]:
    """Backends in order of priority."""
    return sorted(dict.fromkeys(row.backend for row in rows), key=plan.priority)
