"""The ladder of an operator as it is on record, between <!-- rungs op ... --> and <!-- /rungs --> in any page.

<!-- rungs softmax -->                                the largest workload, bf16 where there is a choice
<!-- rungs transpose x=8192x8192 fp32 -->              this workload in this dtype
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import torch

from kernelmux.perf.planning import plan
from kernelmux.perf.record import history
from kernelmux.perf.record.history import GpuRecord
from kernelmux.perf.rows.row_result import Timed
from kernelmux.perf.wording import wording
from kernelmux.perf.wording.groups import ResultGroup, groups, large_groups
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.cli import target_device
from kernelmux.registry.dtypes import SHORT, parse
from kernelmux.registry.util import text_tables

GPU = "sm_90"  # asked for what can run on recorded GPUs
MARKER = re.compile(r"(<!-- rungs (\S+) ?(.*?) ?-->\n).*?(<!-- /rungs -->)", re.DOTALL)
HEAD = ("variant", "idea", "us", "of the floor", "times torch", "times the rung before")


def backends() -> tuple[str, ...]:
    """The backends of this repository by priority: a plugin that is installed changes no page."""
    own = (name for name in registered.backends() if registered.package(name).startswith("kernelmux.backends."))
    return tuple(sorted(own, key=plan.priority))


def filled(text: str) -> str:
    """A page with the tables that its markers ask for."""

    def with_tables(m: re.Match[str]) -> str:
        found = "\n\n".join(table_of(record, m[2], m[3]) for record in history.recorded())
        return f"{m[1]}{found}\n{m[4]}"

    return MARKER.sub(with_tables, text)


def table_of(record: GpuRecord, op: str, which: str = "") -> str:
    """The variants of one workload in ladder order; those that are stale or not on record say so."""
    workload, _, dtype = which.rpartition(" ")
    recorded = [row for row in rows(record) if row.op == op]
    if not which and recorded:
        (found,) = large_groups(recorded)
        workload, dtype = found.workload, found.dtype
    elif not which:
        case, spec = plan.large(catalog.spec(op)), catalog.spec(op)
        workload, dtype = case.text, SHORT[_usual(case.dtypes or spec.dtypes)]
    group = next((g for g in groups(recorded) if (g.workload, g.dtype) == (workload, dtype)), None)
    cells = list(_lines(group or ResultGroup(op, workload, dtype, ())))
    intro = f"`{workload}` {dtype} on {wording.where(record.results.machine)}, {_when(record, group)}:"
    return "\n\n".join([intro, text_tables.markdown(HEAD, cells), *_command(op, workload, dtype, cells)])


def rows(record: GpuRecord) -> tuple[Timed, ...]:
    """What is on record of our own backends; which rows are stale is found out once."""
    return _rows(record.gpu)


@cache
def _rows(gpu: str) -> tuple[Timed, ...]:
    own = (row for r in history.everywhere() if r.gpu == gpu for row in r.rows if row.backend in backends())
    return tuple(row for row in own if not registered.joined(row.op, row.variant))


def _usual(dtypes: tuple[torch.dtype, ...]) -> torch.dtype:
    return torch.bfloat16 if torch.bfloat16 in dtypes else dtypes[0]


def _when(record: GpuRecord, group: ResultGroup | None) -> str:
    dates = sorted({row.date or record.results.date for row in group.good}) if group else []
    return " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else "not recorded yet"


def _lines(group: ResultGroup) -> Iterator[list[str]]:
    """A line per variant, on record or not."""
    known = {row.label: row for row in group.good}
    call = catalog.spec(group.op).hypothetical(
        catalog.spec(group.op).case(group.workload),
        parse(group.dtype),
        capability=target_device.machine(GPU, GPU).capability,
    )
    for backend in backends():
        for variant, found in registered.variants(backend, group.op).items():
            row = known.get(f"{backend}/{variant}")
            if (row is not None or not found.reasons(call)) and not registered.joined(group.op, variant):
                yield [f"{backend}/{variant}", found.idea, *_cells(group, row)]


def _cells(group: ResultGroup, row: Timed | None) -> list[str]:
    if row is None:
        return ["not recorded", "", "", ""]
    return [
        f"{wording.microseconds(row.median_us)}{', stale' if row.stale else ''}",
        wording.share(row),
        wording.times(group.times_torch(row)),
        wording.times(group.times_previous(row)),
    ]


def _command(op: str, workload: str, dtype: str, cells: list[list[str]]) -> Iterator[str]:
    """How to record what is not, or not as it stands."""
    if any("recorded" in cell[2] or "stale" in cell[2] for cell in cells):
        command = f'python -m kernelmux.perf --op {op} --dtype {dtype} --workload "{workload}" --record --into-checkout'
        yield f"To record it: `{command}`."
