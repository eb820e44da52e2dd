"""python -m kernelmux.perf.emulated.moved: counts on the emulator the bytes that calls move.

The reports show them beside the bytes that a call has to move. Counted is one small call of each operator and backend
that the emulator runs, with the variant that the backend chooses. To count, a kernel is compiled a second time; so the
counts are kept in `moved.json` beside this file, with the hashes of spec and source. Without options only what is
stale or missing is counted anew.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import torch
from rich.console import Console
from rich.text import Text

from kernelmux import emulator
from kernelmux.perf.planning import plan
from kernelmux.perf.record.run_file import Moved
from kernelmux.perf.rows import output_files
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.perf.wording import wording
from kernelmux.perf.wording.columns import Columns
from kernelmux.registry import catalog, dtypes, elsewhere
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch
from kernelmux.registry.cases import draw, generator
from kernelmux.registry.choice import requests
from kernelmux.registry.cli import terminal
from kernelmux.registry.errors import KernelmuxError
from kernelmux.registry.spec import value_domains

RECORD = Path(__file__).with_name("moved.json")
SECONDS = 120.0  # that one launch may take


@dataclass(frozen=True)
class Question:
    """An operator, a backend, and the small call: what is counted once."""

    op: str
    backend: str
    workload: str
    dtype: str

    @property
    def hashes(self) -> tuple[str, str]:
        return catalog.spec(self.op).hash, registered.source_hash(self.backend, self.op)


def questions(ops: Iterable[str] = ()) -> Iterator[Question]:
    """Of each operator the call that a machine without a GPU times, for each backend of ours with kernels."""
    own = [n for n in registered.backends() if registered.package(n).startswith("kernelmux.backends.")]
    for op in ops or elsewhere.own():
        row = plan.rows(PerfOptions(ops=(op,), device="cpu"))[0]
        for name in sorted(own, key=plan.priority):
            if plan.emulates(name) and registered.implements(name, op):
                yield Question(op, name, row.workload, row.dtype)


def known(ops: Iterable[str] = ()) -> tuple[Moved, ...]:
    """What is on record of these operators; `stale` where spec, source or call has changed since."""
    found = []
    for question in questions(ops):
        if row := _recorded(RECORD).get((question.op, question.backend)):
            same = (row.workload, row.dtype, row.spec, row.source) == (
                question.workload,
                question.dtype,
                *question.hashes,
            )
            found.append(replace(row, stale=not same))
    return tuple(found)


@cache
def _recorded(path: Path) -> dict[tuple[str, str], Moved]:
    rows = [Moved(**row) for row in json.loads(path.read_text(encoding="utf-8"))["rows"]] if path.exists() else []
    return {(row.op, row.label.partition("/")[0]): row for row in rows}


def count(question: Question) -> Moved:
    """Run the call on the emulator and add up the bytes of its requests. KernelmuxError, EmulatorError."""
    spec = catalog.spec(question.op)
    call = spec.hypothetical(spec.case(question.workload), dtypes.parse(question.dtype))
    drawn = {name: _drawn(question.op, name, call.arguments[name]) for name in call.tensors}
    scalars = {s.name: call.arguments[s.name] for s in spec.scalars}
    inputs = value_domains.lawful(spec, drawn, call.scalars) | scalars
    bound = spec.bind(**inputs)  # with values: they may say how much work there is
    chosen = dispatch.decide(bound, requests.parse(question.backend, "the count")).chosen
    if chosen is None:
        raise KernelmuxError(f"{question.op}: {question.backend} does not run {question.workload} {question.dtype}")
    with warnings.catch_warnings(action="ignore"), emulator.time_limit(SECONDS), emulator.trace() as trace:
        dispatch.function(spec.name)(**inputs, backend=chosen.name)
    moved = sum(launch.moved for launch in trace.launches)
    work = (question.workload, question.dtype, moved, int(bound.cost.bytes), len(trace.launches))
    return Moved(question.op, chosen.name, *work, *question.hashes)


def _drawn(op: str, name: str, like: torch.Tensor) -> torch.Tensor:
    return draw(tuple(like.shape), like.dtype, generator(op, name))


def write(rows: Iterable[Moved]) -> None:
    """Put rows in place of those of the same operators and backends."""
    merged = _recorded(RECORD) | {(row.op, row.label.partition("/")[0]): row for row in rows}
    kept = [{k: v for k, v in asdict(merged[key]).items() if k != "stale"} for key in sorted(merged)]
    lines = ",\n".join(json.dumps(row) for row in kept)
    output_files.write(RECORD, f'{{"rows": [\n{lines}\n]}}\n')
    _recorded.cache_clear()


COLUMNS = Columns(("", "call", "moved", "has to move", "times"), ("", "call"), ("call",))


def show(console: Console, rows: Sequence[Moved]) -> None:
    """Print the counts as a table."""
    if rows:
        lines = [([Text(cell) for cell in wording.moved(row)], None) for row in rows]
        console.print(COLUMNS.table(console, lines, "bytes that a small call moves, counted on the emulator"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, write, print; exit status 1 if a call could not be counted."""
    parser = terminal.Parser(
        prog="python -m kernelmux.perf.emulated.moved", description=(__doc__ or "").partition(": ")[2]
    )
    parser.add_argument("--op", nargs="+", default=(), metavar="OP", help="only these operators")
    parser.add_argument("--all", action="store_true", help="count what is on record and current, too")
    options = parser.parse_args(arguments)
    return terminal.run("moved", lambda: _run(Console(highlight=False), options.op, options.all))


def _run(console: Console, ops: Sequence[str], everything: bool) -> int:
    current = {} if everything else {(r.op, r.label.partition("/")[0]): r for r in known(ops) if not r.stale}
    failed = 0
    for question in questions(ops):
        if (question.op, question.backend) not in current:
            try:
                row = count(question)
                write([row])
                console.print(f"{row.op} {row.label}: {row.times:.2f} times what it has to move", soft_wrap=True)
            except (KernelmuxError, emulator.EmulatorError) as error:
                failed += 1
                console.print(f"{question.op} {question.backend}: {error}", style="red", markup=False, soft_wrap=True)
    show(console, known(ops))
    return terminal.FAILED if failed else terminal.OK


if __name__ == "__main__":
    sys.exit(main())
