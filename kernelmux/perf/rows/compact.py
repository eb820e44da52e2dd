"""The form of a record that ships: a line per row, in columns, and each fact once.

Not in it: what follows from time, work and least time (`DERIVED`), and the ideas, which the variants have. The packages of
rows that were timed with others than the machine says stand once per set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelmux.perf.rows.thresholds import LAUNCH_US
from kernelmux.registry.util.files import columns, in_full, rows_of, said_once

ROW = (
    "op workload dtype backend variant spec source median_us spread least_us rounds bytes flops unit link floor_us floor_by"
    " host_us graph_us budget sampled mhz held_us held_mhz date again_us again_spread bound packages"
).split()
OVERHEAD = ("op", "label", "direct_us", "through_us", "bound_us", "unchecked_us", "date", "gradient_us")
DERIVED = ("share", "rate", "rate_unit", "bound", "apart")


class NotCompact(ValueError):
    """A file that says it has this form and has not."""


def form(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record, as `records.form` has it, in this form. bound: of the rows that have another than their time says."""
    made = {name: value for name, value in record.items() if name not in ("rows", "overhead")}
    rows = [{**row, "bound": None if _follows(row) else row.get("bound")} for row in record["rows"]]
    shared, rows = said_once(rows, "packages")
    made |= {name: values for name, values in shared.items() if values} | columns(rows, ROW)
    if "overhead" in record:
        made["overhead"] = columns(record["overhead"], OVERHEAD)
    return made


def whole(made: Mapping[str, Any]) -> dict[str, Any]:
    """A record with all fields of its rows; NotCompact for what is not of this form."""
    try:
        rows = in_full(made, rows_of(made), "packages")
        record = {**made, "rows": [{**_derived(row), **row, "status": "ok"} for row in rows]}
        if "overhead" in made:
            record["overhead"] = rows_of(made["overhead"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise NotCompact(f"expected columns and rows: {type(error).__name__}: {error}") from error
    return record


def _follows(row: Mapping[str, Any]) -> bool:
    """Whether a row is bound by what its time says."""
    return bool(row.get("bound") == _derived(row).get("bound"))


def _derived(row: Mapping[str, Any]) -> dict[str, Any]:
    """What follows from a row: share of the least time, rate in the unit of what binds it, apart of two timings."""
    us, found = row["median_us"], dict[str, Any]()
    if (least := row.get("floor_us")) is not None:
        compute = row["floor_by"] == "compute"
        found["share"] = least / us
        found["rate"] = row["flops"] / us * 1e-6 if compute else row["bytes"] / us * 1e-3
        found["rate_unit"] = "TFLOP/s" if compute else "GB/s"
        found["bound"] = "link" if row["link"] == "host" else "launch" if us < LAUNCH_US else row["floor_by"]
    if (again := row.get("again_us")) is not None:
        found["apart"] = max(us, again) / min(us, again) - 1
    return found
