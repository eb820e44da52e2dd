"""The command line of the suite."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from kernelmux.conformance import check as catalogue
from kernelmux.conformance import expected, ledger, matrix, mutation, plan, report
from kernelmux.conformance.execute import Outcome
from kernelmux.conformance.options import Options
from kernelmux.conformance.plugin import PLAN
from kernelmux.conformance.progress import Reporter
from kernelmux.registry import catalog, dtypes
from kernelmux.registry.cases import TIERS
from kernelmux.registry.errors import ArgumentError, KernelmuxError, UnknownName, unknown

OK, FAILED, USAGE = 0, 1, 2
PARALLEL_FROM = 20  # fewer items are done before the worker processes have imported torch
SHARE_GPU = 8  # processes on one GPU: most of the time goes into compiling, and a context takes half a GiB

EPILOG = """
examples:
  python -m kernelmux.conformance --op softmax --backend triton        one operator on one backend
  python -m kernelmux.conformance --backend cuda/tiled --check layout  one variant, one check, all operators
  python -m kernelmux.conformance --tier full --record                 on a GPU, and write down what passed
  python -m kernelmux.conformance --list                               what would run

Without a GPU the CUDA and Triton kernels run on the emulator, with all of its checks. Exit status: 0 all passed,
1 something failed, 2 the command made no sense or nothing ran.
"""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m kernelmux.conformance",
        description="Runs every registered implementation against the spec of its operator.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    many: dict[str, Any] = {"nargs": "+", "action": "extend", "default": []}
    made.add_argument("--op", **many, metavar="OP", help="operators (default: all)")
    made.add_argument(
        "--backend", **many, metavar="B", help='backends "cuda" or variants "cuda/tiled"; "spec" judges the specs'
    )
    made.add_argument("--check", **many, metavar="NAME", help="checks (default: all; --list names them)")
    made.add_argument("--case", **many, metavar="NAME", help='cases: x37x1000, "*wide", or spelt out: x=5x1025,axis=0')
    made.add_argument("--dtype", **many, metavar="T", help="dtypes such as fp16 bf16 fp32")
    made.add_argument("--tier", default="ci", choices=TIERS, help="how large the cases may be (default: ci)")
    made.add_argument("--seed", type=lambda text: int(text, 0), default=0, help="of all random inputs (default: 0)")
    made.add_argument(
        "--device", choices=("cpu", "cuda"), help="where the tensors live (default: cuda if there is a GPU)"
    )
    made.add_argument(
        "-n",
        dest="workers",
        default="",
        metavar="N",
        help="worker processes, or auto (default: by the size of the run)",
    )
    made.add_argument("-x", "--exitfirst", action="store_true", help="stop at the first item that fails")
    made.add_argument(
        "--out", default="build/conformance", metavar="FOLDER", help="for the reports (default: build/conformance)"
    )
    made.add_argument("--record", action="store_true", help="write what passed on this GPU into the verified ledger")
    made.add_argument(
        "--matrix",
        nargs="?",
        const="",
        metavar="FILE",
        help="print the support matrix, or update it in FILE; runs nothing",
    )
    made.add_argument(
        "--mutants", action="store_true", help="test the suite itself: run it on kernels that are broken on purpose"
    )
    made.add_argument("--list", action="store_true", help="name checks and items; runs nothing")
    return made


def options_of(args: argparse.Namespace) -> Options:
    """The options of a command line; KernelmuxError for names that nobody knows."""
    chosen = Options(
        tuple(args.op), tuple(args.backend), tuple(args.check), tuple(args.case), tuple(args.dtype),
        args.tier, args.seed, args.device or ("cuda" if torch.cuda.is_available() else "cpu"), args.out,
    )  # fmt: skip
    if chosen.device == "cuda" and not torch.cuda.is_available():
        raise ArgumentError("--device cuda: torch sees no GPU here")
    plan.check_names(chosen)
    for name in chosen.dtypes:
        dtypes.parse(name)
    _check_cases(chosen)
    return chosen


def _check_cases(chosen: Options) -> None:
    """A case that no chosen operator has is a mistake."""
    if not chosen.cases:
        return
    for case in chosen.own_cases:
        _ = case.parsed  # an ArgumentError shows the expected form
    specs = [catalog.spec(op) for op in chosen.ops or catalog.names()]
    if not any(chosen.cases_of(spec) for spec in specs):
        every = sorted({case.name for spec in specs for case in spec.cases})
        error = unknown("case", chosen.cases[0], every)
        raise UnknownName(
            str(error)
            if len(every) < 40
            else str(error).replace(f"known: {', '.join(every)}", f"{len(every)} are known")
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    args = parser().parse_args(arguments)
    console = Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=120)
    try:
        if args.matrix is not None:
            return ledger.command(args.matrix, console)
        chosen = options_of(args)
        items = plan.items(chosen)
        if args.mutants:
            return mutation.command(chosen, console)
        if args.list:
            return _list(console, items)
        if args.record:
            ledger.check_recordable(chosen)
    except KernelmuxError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return USAGE
    if not items:
        print("conformance: nothing to run: no item fits this selection (--list shows what there is)", file=sys.stderr)
        return USAGE
    return run(chosen, items, args, console)


def _list(console: Console, items: list[plan.Item]) -> int:
    for name in catalogue.names():
        console.print(f"{name:<16} {catalogue.check(name).summary}", markup=False)
    console.print()
    for item in items:
        console.print(item.id + (f"  ({item.problem.splitlines()[-1]})" if item.problem else ""), markup=False)
    return OK if items else USAGE


def run(chosen: Options, items: list[plan.Item], args: argparse.Namespace, console: Console) -> int:
    """Run the items under pytest, report, and return the exit status."""
    start = time.perf_counter()
    folder = Path(chosen.out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pytest.ini").write_text("[pytest]\n")  # nobody else's configuration
    reporter = Reporter(items, console)
    _rounds(chosen, items, args, reporter, folder)
    outcomes = [reporter.outcomes[i.id] for i in items if i.id in reporter.outcomes]
    errors = reporter.errors + [f"{name}: expected, but no such item" for name in _stale(chosen, items)]
    if args.exitfirst is False and len(outcomes) < len(items):
        errors.append(
            f"{len(items) - len(outcomes)} of {len(items)} items did not report: the process or its GPU was lost"
        )
    return _conclude(chosen, outcomes, errors, args, console, time.perf_counter() - start)


def _rounds(
    chosen: Options, items: list[plan.Item], args: argparse.Namespace, reporter: Reporter, folder: Path
) -> None:
    """Run the items; where a kernel took the CUDA context with it, run what is left in new processes."""
    workers = _workers(args.workers, len(items), chosen)
    while True:
        before = len(reporter.outcomes)
        chosen.save(folder / PLAN, done=sorted(reporter.outcomes))
        pytest.main(_pytest_arguments(folder, workers, args.exitfirst, chosen.device), plugins=[reporter])
        progress = before < len(reporter.outcomes) < len(items)
        if args.exitfirst or chosen.device == "cpu" or not progress:
            return


def _stale(chosen: Options, items: list[plan.Item]) -> list[str]:
    everything = chosen.complete and not (chosen.ops or chosen.backends)
    return expected.stale((i.id for i in items), chosen.device, chosen.tier) if everything else []


def _workers(asked: str, count: int, chosen: Options) -> int:
    if asked not in ("", "auto"):
        return int(asked)
    if count < PARALLEL_FROM and not asked:
        return 1
    cores = os.cpu_count() or 1
    return min(cores, SHARE_GPU) if chosen.device == "cuda" else cores


def _pytest_arguments(folder: Path, workers: int, exitfirst: bool, device: str) -> list[str]:
    path = str(folder.resolve())
    quiet = ["-p", "no:terminal", "-p", "no:cacheprovider", "--noconftest"]
    own = ["-c", f"{path}/pytest.ini", "--rootdir", path, "-p", "kernelmux.conformance.plugin"]
    apart = workers > 1 or device == "cuda"  # a lost CUDA context must not be this process's
    spread = ["-n", str(workers), "--dist", "load", "--maxschedchunk", "1"] if apart else []
    return [f"{path}/{PLAN}", *quiet, *own, *spread, *(["-x"] if exitfirst else [])]


def _conclude(
    chosen: Options,
    outcomes: list[Outcome],
    errors: list[str],
    args: argparse.Namespace,
    console: Console,
    seconds: float,
) -> int:
    where = report.machine(chosen)
    title = f"conformance, tier {chosen.tier}, seed {chosen.seed}, {where}, {seconds:.0f} s"
    matrix.show(console, outcomes, title)
    path = report.write(chosen, outcomes, matrix.markdown(outcomes, title), seconds)
    if args.record:
        console.print(ledger.record(chosen, outcomes), markup=False)
    for error in errors:
        console.print(error, style="red", markup=False)
    console.print(f"\nresults: {path}", markup=False, soft_wrap=True)
    found = report.counts(outcomes)
    console.print(
        f"{found['passed']} passed, {found['failed']} failed, {found['skipped']} skipped", style="bold", highlight=False
    )
    if not found["passed"] and not found["failed"]:
        print("conformance: every item was skipped: nothing was checked", file=sys.stderr)
        return USAGE
    return FAILED if found["failed"] or errors else OK
