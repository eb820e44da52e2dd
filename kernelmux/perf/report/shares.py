"""Shares of the best peer, per family of operators and backend: a peer's time over ours, on each shape of a random sweep.

A share above 1 is faster than every other library that ran, torch among them: the form that its users write. Its exact form
is none, which falls back to products in fp64 where torch has no kernel. Of the two timings of a variant the lesser counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import exp, log

from kernelmux.perf import peers
from kernelmux.perf.planning import plan
from kernelmux.perf.planning.plan import BASELINE, PLAIN
from kernelmux.perf.record.run_file import PeerShare
from kernelmux.perf.rows.row_result import FAILED, RowResult, Timed
from kernelmux.perf.wording.groups import ResultGroup

LEVELS = (0.98, 0.95)
TITLE = "share of the best peer on random shapes: its time over ours"
HEAD = ("family", "backend", "shapes", "mean", *(f"from {level}" for level in LEVELS), "no peer", "not run", "failed")
HEAD += ("worst", "of")
TEXT = ("family", "backend", "of")  # columns that are aligned to the left


def shares(rows: Iterable[RowResult], family_of: Mapping[str, str]) -> tuple[PeerShare, ...]:
    """The summaries of a run, in the order of its families; none for backends that are other libraries."""
    families: dict[str, dict[tuple[str, str, str], list[RowResult]]] = {}
    for row in rows:
        families.setdefault(family_of[row.op], {}).setdefault(row.group, []).append(row)
    return tuple(found for name, shapes in families.items() for found in _family(name, _groups(shapes)))


def _groups(shapes: Mapping[tuple[str, str, str], Sequence[RowResult]]) -> list[ResultGroup]:
    return [ResultGroup(*key, tuple(rows)) for key, rows in shapes.items()]


def _family(name: str, groups: Sequence[ResultGroup]) -> list[PeerShare]:
    others = (BASELINE, peers.NAME)
    backends = dict.fromkeys(row.backend for group in groups for row in group.rows if row.backend not in others)
    return [_share(name, backend, groups) for backend in sorted(backends, key=plan.priority)]


def _share(family: str, backend: str, groups: Sequence[ResultGroup]) -> PeerShare:
    fastest = [(group, _fastest(row for row in group.good if row.backend == backend)) for group in groups]
    ours = [(group, best) for group, best in fastest if best]
    found = [(peer.lesser_us / best.lesser_us, group, peer) for group, best in ours if (peer := best_peer(group))]
    missing = [group for group, best in fastest if not best]
    failed = sum(any(row.backend == backend and row.status == FAILED for row in group.rows) for group in missing)
    made = PeerShare(family, backend, no_peer=len(ours) - len(found), failed=failed, not_run=len(missing) - failed)
    if not found:
        return made
    ratios = [ratio for ratio, _, _ in found]
    worst, group, peer = min(found, key=lambda one: one[0])
    return replace(
        made,
        shapes=len(ratios),
        mean=exp(sum(map(log, ratios)) / len(ratios)),
        at_least=tuple(sum(ratio >= level for ratio in ratios) for level in LEVELS),
        worst=worst,
        worst_shape=f"{group.op} {group.workload} {group.dtype}",
        worst_peer="torch" if peer.backend == BASELINE else peer.variant,
    )


def best_peer(group: ResultGroup) -> Timed | None:
    """The fastest of torch and the other libraries on a shape; None if none of them ran and was right."""
    ran = (row for row in group.good if row.backend == peers.NAME or (row.backend, row.variant) == (BASELINE, PLAIN))
    return _fastest(ran)


def _fastest(rows: Iterable[Timed]) -> Timed | None:
    return min(rows, key=lambda row: row.lesser_us, default=None)


def lines(found: Iterable[PeerShare]) -> list[Sequence[str]]:
    """The cells of a table with `HEAD`."""
    return [_line(share) for share in found]


def _line(share: PeerShare) -> Sequence[str]:
    numbers = (f"{share.mean:.3f}", *map(str, share.at_least)) if share.shapes else ("", *("" for _ in LEVELS))
    worst = (f"{share.worst:.3f}", f"{share.worst_shape}, {share.worst_peer}") if share.shapes else ("", "")
    counts = map(str, (share.no_peer, share.not_run, share.failed))
    return (share.family, share.backend, str(share.shapes), *numbers, *counts, *worst)
