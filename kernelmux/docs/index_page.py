"""docs/operators/README.md: every operator by family, who computes it, and how fast."""

from __future__ import annotations

from kernelmux.conformance.verified import ledger
from kernelmux.docs import ladder_tables
from kernelmux.docs.families import by_family
from kernelmux.docs.ladder_tables import backends
from kernelmux.docs.record_tables import mark
from kernelmux.perf.record import history
from kernelmux.perf.wording import wording
from kernelmux.perf.wording.groups import ResultGroup, large_groups
from kernelmux.registry import elsewhere
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.util import text_tables

HEAD = """# Operators

An operator's page has its formula, its arguments, who computes it under which conditions, its error bound, its gradient
and its times. A cell below has the variants of a backend in ladder order.

{marks}

The last column is the fastest variant of all on the largest workload, in bf16 where there is a choice. It has its time and
its [share of the floor](../roofline.md), and is stale if what it launches has changed since.
"""


def page() -> str:
    """The whole page."""
    marks = text_tables.markdown(("mark", "the variant"), list(ledger.meanings().items()))
    parts = [HEAD.format(marks=marks).rstrip()]
    timed = [row for record in history.recorded() for row in ladder_tables.rows(record)]
    speeds = {group.op: _speed(group) for group in large_groups(timed)}
    for family, ops in by_family(elsewhere.own()).items():
        rows = [(f"[{op}]({op}.md)", *(_cell(op, name) for name in backends()), speeds.get(op, "-")) for op in ops]
        parts += [f"## {family}", text_tables.markdown(("operator", *backends(), "best, us"), rows)]
    return "\n\n".join([*parts, "Written by `nox -s docs` from the specs and the records."]) + "\n"


def _cell(op: str, backend: str) -> str:
    found = (name for name in registered.variants(backend, op) if not registered.joined(op, name))
    return ", ".join(f"{name} {ledger.MARKS[ledger.status(op, backend, name)[0]]}" for name in found) or "-"


def _speed(group: ResultGroup) -> str:
    best = group.best
    return f"{wording.microseconds(best.median_us)}, {wording.share(best)} {mark(best)}" if best else "-"
