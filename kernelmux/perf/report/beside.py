"""Our backends beside the other libraries of a run with `--peers`: one line per workload."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kernelmux.perf import peers
from kernelmux.perf.planning.plan import BASELINE
from kernelmux.perf.rows.row_result import RowResult, Timed
from kernelmux.perf.wording import wording
from kernelmux.perf.wording.groups import ResultGroup, groups

OURS = ("cuda", "triton")
HEAD = (
    "workload",
    *(f"{backend}, us" for backend in OURS),
    "torch, us",
    "best other, us",
    *(f"{b} ahead" for b in OURS),
)


def lines(rows: Iterable[RowResult]) -> list[Sequence[str]]:
    """Times of the best variants, of torch and of the fastest other library, and how many times faster ours are."""
    return [_line(group, other) for group in groups(rows) if (other := group.best_of(peers.NAME))]


def _line(group: ResultGroup, other: Timed) -> Sequence[str]:
    ours = [group.best_of(backend) for backend in OURS]
    best = min((row for row in (other, group.baseline) if row), key=lambda row: row.median_us)
    name = "torch" if best.backend == BASELINE else best.variant
    return (
        f"{group.op} {group.workload} {group.dtype}",
        *(_us(row) for row in ours),
        _us(group.baseline),
        f"{wording.microseconds(best.median_us)} {name}",
        *(f"{best.median_us / row.median_us:.2f}x" if row else "" for row in ours),
    )


def _us(row: Timed | None) -> str:
    return f"{wording.microseconds(row.median_us)} {row.variant}" if row else ""
