"""The command line of the suite."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from rich.console import Console

from kernelmux.candidate import packages
from kernelmux.candidate.implementation import opening
from kernelmux.conformance import check as catalogue
from kernelmux.conformance.cli import arguments, run
from kernelmux.conformance.cli.run import FAILED, OK, USAGE
from kernelmux.conformance.fits import sweep
from kernelmux.conformance.fuzz import command as fuzz
from kernelmux.conformance.options import Options
from kernelmux.conformance.report import artifacts, not_reached, output_files
from kernelmux.conformance.report.progress import Closed, output
from kernelmux.conformance.session import mutation, plan
from kernelmux.conformance.verified import ledger, rekey
from kernelmux.registry.backend import tamper_guard
from kernelmux.registry.call import temporary_backends
from kernelmux.registry.cli import target_device
from kernelmux.registry.errors import KernelmuxError
from kernelmux.runner import results
from kernelmux.runner.interrupts import INTERRUPTED, interrupts

__all__ = ["CLOSED", "FAILED", "INTERRUPTED", "OK", "USAGE", "main"]

CLOSED = 141


def main(given: Sequence[str] | None = None, begun: float = 0.0) -> int:
    """Run the command line and return the exit status; SystemExit for --help alone.

    begun: when the process began, by time.monotonic.
    """
    console = output(sys.stdout.isatty())
    try:
        return _main(given, begun or time.monotonic(), console)
    except KernelmuxError as error:
        print(f"conformance: {' '.join(str(error).split())}", file=sys.stderr)
        return USAGE
    except (Closed, BrokenPipeError):
        return _closed()
    except KeyboardInterrupt:
        print("conformance: interrupted", file=sys.stderr)
        return INTERRUPTED


def _closed() -> int:
    """The reader of the output has gone: say nothing more, at exit neither."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return CLOSED


def _main(given: Sequence[str] | None, begun: float, console: Console) -> int:
    args = arguments.parser().parse_args(given)
    gpu = torch.cuda.is_available() and args.device != "cpu"
    device = args.device or ("cuda" if gpu else "cpu")
    with target_device.standing(args.card, "--card", gpu), packages.apart(device, args.in_process):
        return _run_mode(args, begun, console)


def _run_mode(args: argparse.Namespace, begun: float, console: Console) -> int:
    chosen = arguments.options_of(args)
    if args.fits is not None:
        return sweep.command(chosen, args.fits, args.workers or "", args.record, console)
    if args.matrix is not None:
        return ledger.command(args.matrix, chosen.ops, console)
    if args.rekey:
        return rekey.command(args.rekey, chosen.ops, lambda line: console.print(line, markup=False, soft_wrap=True))
    if args.fuzz or args.fuzz_only is not None:
        return fuzz.command(chosen, args.fuzz or 0, args.workers or "", args.fuzz_only, console)
    if args.record:
        ledger.check_recordable(chosen, args.coverage)
    with ExitStack() as registered:
        if chosen.mutants:
            registered.enter_context(mutation.registration())
        registered.enter_context(tamper_guard.watched())
        registered.enter_context(temporary_backends.joined(chosen.impl, "".join(chosen.ops), opening(chosen.device)))
        items = mutation.items(chosen) if chosen.mutants else plan.items(chosen)
        if args.list:
            _list(console, items, chosen.quiet)
        if not items:
            keyword = f" and -k {shlex.quote(chosen.keyword)}" if chosen.keyword else ""
            said = f"nothing to run: no item fits this selection{keyword} (--list shows what there is)"
            print(f"conformance: {said}", file=sys.stderr)
            return USAGE
        return OK if args.list else _run(chosen, items, args, begun, console)


def _run(chosen: Options, items: list[plan.Item], args: argparse.Namespace, begun: float, console: Console) -> int:
    known = (artifacts.DURATIONS, artifacts.LAST_FAILED, results.NAME)
    names = (*artifacts.names(chosen, True), *artifacts.names(chosen, False), *known)
    output_files.prepare(artifacts.folder(chosen), names)
    ways = run.Ways(args.workers or "", args.maxfail, args.resume, args.cluster, tuple(args.on), begun)
    found = run.run(chosen, items, ways, console)
    with interrupts.held():  # reports and records are written whole
        return _write_reports(chosen, items, found, args, console)


def _write_reports(
    chosen: Options, items: list[plan.Item], found: run.RunOutcome, args: argparse.Namespace, console: Console
) -> int:
    """Write the reports, and the record if it is asked for; the exit status."""
    try:
        if args.junit:
            from kernelmux.conformance.report import junit  # its package need not be there for others

            junit.write(Path(args.junit), found.outcomes, found.seconds, found.tested, found.errors)
        status = (
            run.conclude_mutants(chosen, found, console) if chosen.mutants else run.conclude(chosen, found, console)
        )
        if args.record:
            written = not_reached.recorded if chosen.device == "cpu" else ledger.record
            console.print(written(chosen, items, found.outcomes), markup=False)
        if args.durations is not None:
            run.slowest(found, args.durations, console)
        run.farewell(chosen, found, console)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        print(f"conformance: {chosen.out}: cannot write the reports: {error}", file=sys.stderr)
        return USAGE
    return (CLOSED if found.closed else INTERRUPTED) if found.interrupted else status


def _list(console: Console, items: list[plan.Item], quiet: bool) -> None:
    """The checks and the items; quiet: the items alone."""
    for name in () if quiet else catalogue.names():
        console.print(f"{name:<16} {catalogue.check(name).summary}", markup=False, soft_wrap=True)
    if not quiet:
        console.print()
    for item in items:
        problem = f"  ({item.problem.splitlines()[-1]})" if item.problem else ""
        console.print(item.id + problem, markup=False, soft_wrap=True)
