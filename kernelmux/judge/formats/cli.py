"""The command line that reads other projects' tasks without judging anything: what are they, and do they run?"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from rich.console import Console

from kernelmux.candidate import sandbox
from kernelmux.judge import formats
from kernelmux.judge.formats import report
from kernelmux.judge.formats.reduced_sizes import byte_count
from kernelmux.judge.formats.reference import survey
from kernelmux.judge.formats.reference.process import ReferenceProcess, TaskLimits
from kernelmux.judge.formats.reference.survey import FAILED, TaskRow
from kernelmux.judge.formats.task import FormatError
from kernelmux.registry.cli import terminal

PROGRAM = "kernelmux.judge.formats"
WIDTH = 160
EPILOG = """
examples:
  python -m kernelmux.judge.formats KernelBench/KernelBench --format kernelbench                what the tasks are
  python -m kernelmux.judge.formats KernelBench/KernelBench --format kernelbench --check --limit 1M
  python -m kernelmux.judge.formats reference-kernels/problems --format gpu_mode --only "pmpp_v2/*" --json found.json
  python -m kernelmux.judge.formats --calibrate 20        the estimated bound beside the derived one, on our operators

References are strangers' code: they run in a sandbox by bubblewrap, without network and without a place to write, one
process each; where there is no bubblewrap, only with --unconfined. Exit status: 0 all run, 1 one failed, 2 usage error,
130 Ctrl-C, after the table of those before.
"""


def parser() -> argparse.ArgumentParser:
    made = terminal.Parser(
        prog=f"python -m {PROGRAM}",
        description="Reads the tasks of other projects: which there are, by what the judge would judge them, and whether"
        " their references run on a CPU.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("folder", type=Path, nargs="?", help="a checkout of the project, or a part of it")
    made.add_argument("--format", choices=tuple(formats.FORMATS), help="whose tasks these are")
    made.add_argument(
        "--check", action="store_true", help="make the bound of each task, and hold its own reference to it"
    )
    made.add_argument("--only", metavar="PATTERN", default="*", help='tasks by name: "level1/2*"')
    made.add_argument(
        "--limit",
        type=byte_count,
        metavar="BYTES",
        default=4 << 30,
        help="of a call's tensors; beyond it sizes are reduced (4G)",
    )
    made.add_argument("--seconds", type=float, metavar="S", default=120.0, help="for each task (default: 120)")
    made.add_argument("--seed", type=terminal.count, metavar="S", default=0, help="of the inputs (default: 0)")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the rows")
    made.add_argument("--junitxml", type=Path, metavar="FILE", help="write JUnit XML; needs junitparser")
    made.add_argument("--unconfined", action="store_true", help="run references without a sandbox")
    made.add_argument(
        "--calibrate", type=terminal.positive, metavar="SEEDS", help="print the estimated bound beside ours"
    )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    return terminal.run(PROGRAM, lambda: _main(parser().parse_args(arguments)))


def _main(options: argparse.Namespace) -> int:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    if options.calibrate:
        return _calibrate(console, options.calibrate)
    if options.folder is None or options.format is None:
        raise FormatError("expected a folder and --format, or --calibrate")
    if not options.unconfined and (lacking := sandbox.not_held()):
        raise FormatError(f"{lacking[0]}: --unconfined runs the references as they are")
    tasks = [t for t in formats.find(options.format, options.folder) if fnmatchcase(t.name, options.only)]
    if not tasks:
        raise FormatError(f"{options.folder}: no task of {options.format} by the name of {options.only}")
    start, rows, ended = time.monotonic(), list[TaskRow](), True
    reference = ReferenceProcess(options.folder, TaskLimits(options.limit, options.seconds), not options.unconfined)
    try:
        for row in survey.rows(tasks, reference, options.check, options.seed):
            rows.append(row)
            if sys.stderr.isatty():
                print(f"\r{len(rows)} of {len(tasks)}", end="", file=sys.stderr, flush=True)
            else:
                print(f"[{len(rows)}/{len(tasks)}] {row.status}: {row.task}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        ended = False
    finally:
        reference.close()
    console.print(report.table(rows))
    console.print(report.counts(rows), markup=False)
    if not ended:
        console.print(f"interrupted: {len(tasks) - len(rows)} of {len(tasks)} tasks were not asked")
    if options.json:
        report.write_json(options.json, rows)
    if options.junitxml:
        report.write_junit(options.junitxml, rows, time.monotonic() - start)
    if not ended:
        return terminal.INTERRUPTED
    return terminal.FAILED if any(row.status == FAILED for row in rows) else terminal.OK


def _calibrate(console: Console, seeds: int) -> int:
    from rich.table import Table

    from kernelmux.judge.formats.bounds import calibration

    table = Table("operator", "case", "dtype", "estimated / derived", "least", "torch uses", box=None, pad_edge=False)
    found = list(calibration.rows(range(seeds)))
    for row in found:
        dtype = str(row.dtype).removeprefix("torch.")
        table.add_row(row.op, row.case, dtype, f"{row.ratio:.3g}", f"{row.least:.3g}", f"{row.used:.3g}")
    console.print(table)
    middle, worst = sorted(row.ratio for row in found)[len(found) // 2], max(row.used for row in found)
    console.print(
        f"median of estimated / derived: {middle:.3g}; torch uses at most {worst:.3g} of it, over {seeds} seeds"
    )
    return terminal.FAILED if worst > 1 else terminal.OK
