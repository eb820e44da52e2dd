"""`python -m kernelmux.perf.profile`: an operator, a script or a trace that exists."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from kernelmux.perf.planning import plan
from kernelmux.perf.profile import capture, counters, report, subject, timeline
from kernelmux.perf.profile.capture import Schedule
from kernelmux.perf.profile.subject import Subject
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import temporary_backends
from kernelmux.registry.cli import terminal
from kernelmux.registry.errors import ArgumentError
from kernelmux.runner.results import folder as writable_folder

NAME = "profile"
WIDTH = 160  # of tables that go into a file
EPILOG = """examples:
  python -m kernelmux.perf.profile --op softmax --backend triton       an operator: timeline, and ncu where it is installed
  python -m kernelmux.perf.profile --op transpose --backend cuda/naive cuda/tiled --workload "x=4096x4096" --dtype fp32
  python -m kernelmux.perf.profile --op softmax --impl mine.py:softmax   one function from any file
  python -m kernelmux.perf.profile train.py --epochs 1                 a script of yours, all of it
  python -m kernelmux.perf.profile --active 5 train.py                 5 steps of it, after 1 that passes and 3 of warm-up
  python -m kernelmux.perf.profile --read trace.json                   what a Chrome trace shows; needs no GPU

A step of a script ends with the step of an optimizer, or where it calls kernelmux.perf.profile.capture.step().
Traces are kept in the folder of --out; https://ui.perfetto.dev and chrome://tracing draw them. Without a GPU torch is
profiled on the CPU; `kernelmux emulate` counts what kernels would do to memory.
Exit status: 0 profiled, 1 the script raised, 2 usage error, 130 Ctrl-C.
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    program = terminal.program("kernelmux.perf.profile")
    made = terminal.Parser(
        prog=program,
        description="Profiles an operator or a script with torch.profiler, and says where its time goes.",
        epilog=EPILOG.replace("python -m kernelmux.perf.profile", program),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("script", nargs="?", type=Path, help="a Python file, run as a program of its own")
    made.add_argument("words", nargs=argparse.REMAINDER, help="its arguments")
    made.add_argument("--op", metavar="OP", help="an operator")
    made.add_argument("--backend", nargs="+", default=[], metavar="B", help="cuda, triton, cuda/tiled (default: auto)")
    made.add_argument("--impl", default="", metavar="FILE.py:FUNCTION", help="a function from any file, as --op")
    made.add_argument("--workload", default="", metavar="TEXT", help='such as "x=64x32768" (default: the largest)')
    made.add_argument("--dtype", default="", metavar="T", help="such as bf16 (default: the usual one)")
    made.add_argument("--wait", type=terminal.count, metavar="N", help="steps that pass by first (default: 1)")
    made.add_argument("--warmup", type=terminal.count, metavar="N", help="steps that are not kept (default: 3)")
    made.add_argument(
        "--active",
        type=terminal.positive,
        metavar="N",
        help="steps that are kept (default: 10; of a script, everything)",
    )
    made.add_argument("--read", type=Path, metavar="TRACE", help="read this Chrome trace; runs nothing")
    made.add_argument("--no-ncu", action="store_true", help="do not run ncu, which takes a minute for each variant")
    made.add_argument("--launch", action="store_true", help="one call of --op, for nsys and ncu to see; prints nothing")
    made.add_argument("--out", type=Path, default=Path("build/profile"), metavar="FOLDER", help="for traces")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    return terminal.run(NAME, lambda: _main(parser().parse_args(arguments)))


def _main(args: argparse.Namespace) -> int:
    if sum(what is not None for what in (args.op, args.script, args.read)) != 1:
        raise ArgumentError("expected one of --op OP, a script, and --read TRACE")
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    if args.read is not None:
        report.show(console, timeline.read(args.read))
        return terminal.OK
    if args.launch and args.op is None:
        raise ArgumentError("--launch: expected an operator, --op")
    if args.impl and args.op is None:
        raise ArgumentError("--impl: expected the operator that it computes, --op")
    if args.op is None:
        writable_folder(args.out, "--out")
        return _script(console, args)
    with temporary_backends.joined(args.impl, args.op):
        args.backend = args.backend or ([temporary_backends.NAME] if args.impl else [])
        if args.launch:
            return _launch(args)
        writable_folder(args.out, "--out")
        return _operator(console, args)


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _launch(args: argparse.Namespace) -> int:
    for one in _subjects(args, args.backend):
        subject.launch(one)
    return terminal.OK


def _operator(console: Console, args: argparse.Namespace) -> int:
    for one in _subjects(args, _able(console, args.backend)):
        console.print(f"\n[bold]{one.op}[/bold] {one.backend}, {one.workload} {one.dtype}", soft_wrap=True)
        trace = args.out / f"{one.stem}.json"
        capture.operator(one, _schedule(args), trace)
        console.print(f"trace: {trace}", markup=False, soft_wrap=True)
        report.show(console, timeline.read(trace))
        if one.device == "cuda" and not args.no_ncu:
            _counters(console, one, args.out)
    _commands(console, args)
    return terminal.OK


def _subjects(args: argparse.Namespace, backends: Sequence[str]) -> list[Subject]:
    return subject.subjects(args.op, backends, args.workload, args.dtype, _device(), args.impl)


def _able(console: Console, backends: Sequence[str]) -> list[str]:
    """The backends that can be timed here: emulated kernels cannot, and torch on the CPU stands in for them."""
    if _device() == "cuda":
        return list(backends)
    emulated = [label for label in backends if plan.emulates(registered.split(label, "--backend")[0])]
    rest = [label for label in backends if label not in emulated]
    if emulated or not rest:
        what = f"kernels of {', '.join(emulated)} cannot be timed: " if emulated else ""
        console.print(f"no GPU here: {what}this is {plan.BASELINE} on the CPU", style="yellow", soft_wrap=True)
    return rest or [plan.BASELINE]


def _schedule(args: argparse.Namespace) -> Schedule:
    given = {name: getattr(args, name) for name in ("wait", "warmup", "active") if getattr(args, name) is not None}
    return Schedule(**given)


def _counters(console: Console, one: Subject, folder: Path) -> None:
    console.print(f"\nncu: counters of one call of {one.name} ...", markup=False)
    seen = counters.measure(one, folder)
    if isinstance(seen, str):
        console.print(f"no counters: {seen}", markup=False, soft_wrap=True)
        return
    for kernel in seen:
        report.show_counters(console, kernel.kernel, counters.counters(kernel, one.inputs.work.bytes))


def _commands(console: Console, args: argparse.Namespace) -> None:
    """For every variant that can run the call, how nsys and ncu look at it."""
    console.print("\n[bold]every variant by hand[/bold], where there are a GPU, nsys and ncu", soft_wrap=True)
    for other in subject.ladder(args.op, args.workload, args.dtype):
        console.print(f"{other.name}", markup=False)
        for command in other.commands():
            console.print(f"  {command}", markup=False, soft_wrap=True)


def _script(console: Console, args: argparse.Namespace) -> int:
    whole = args.wait is None and args.warmup is None and args.active is None
    trace = args.out / f"{args.script.stem}.json"
    trace.unlink(missing_ok=True)
    raised = capture.script(args.script, args.words, None if whole else _schedule(args), trace)
    if raised is not None:
        traceback.print_exception(raised)
    console.print(f"trace: {trace}", markup=False, soft_wrap=True)
    report.show(console, timeline.read(trace))
    return terminal.OK if raised is None else 1
