"""`kernelmux warm train.py`: compile what a program will call, side by side, before it runs."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
)

from kernelmux.registry.cli import doctor, terminal
from kernelmux.registry.cli.target_device import CARD, standing
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.observe import recorded_calls
from kernelmux.registry.observe.recorded_calls import RecordedCall
from kernelmux.registry.util import cards, text_tables
from kernelmux.runner.machine import available_cores
from kernelmux.warm import pool, script
from kernelmux.warm.pool import Compilation
from kernelmux.warm.script import SeenCalls

PROGRAM = "kernelmux warm"
STEPS = 2  # of an optimizer: the first makes its state
SECONDS = 120.0
VALUES = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedFakeTensorException)
INSTEAD = "record a run on a GPU (docs/compiling_ahead.md)"
KEPT = ("CUDA kernels", "Triton's kernels")  # of doctor's caches, those that are filled
EPILOG = """examples:
  kernelmux warm train.py                           what two steps of it call, for the GPUs of this machine
  kernelmux warm --card h100 train.py --bf16        for a GPU elsewhere; what follows the program is its own
  kernelmux warm --keep calls.json train.py         keep the calls too
  kernelmux warm --card h100 calls.json             compile for the calls of a file

The program runs without a GPU and without memory for its tensors. torch.save() writes nothing there; other files that the
program writes it does write. Where it needs values (the shape of x[mask]) it ends: record a run on a GPU then,
`with kernelmux.record() as log: ...`, and `log.save("calls.json")`.
Exit status: 0 all is compiled, 1 a call is not or the program raised, 2 usage error, 130 Ctrl-C.
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = terminal.Parser(
        prog=PROGRAM,
        description="Compiles the kernels that a program will launch, on all cores, into the caches of this machine.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    card = f"{CARD}; may be given several times (default: the GPUs of this machine)"
    made.add_argument("--card", action="append", default=[], metavar="CARD", help=card)
    steps = f"end the program after N steps of each optimizer; 0: let it end by itself (default: {STEPS})"
    made.add_argument("--steps", type=terminal.count, default=STEPS, metavar="N", help=steps)
    late = f"end the program after so many seconds (default: {SECONDS:.0f})"
    made.add_argument("--seconds", type=terminal.seconds, default=SECONDS, metavar="S", help=late)
    cores = available_cores()
    made.add_argument(
        "-n", type=terminal.positive, default=cores, metavar="N", help=f"processes (default: {cores}, the cores)"
    )
    made.add_argument("--keep", type=Path, metavar="FILE", help="write the calls into a file")
    program = "a Python file, run as a program of its own, or a JSON file of calls; options stand before it"
    made.add_argument("program", type=Path, metavar="PROGRAM.py", help=program)
    made.add_argument("words", nargs=argparse.REMAINDER, metavar="...", help="its arguments")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    return terminal.run(PROGRAM, lambda: _main(parser().parse_args(arguments)))


def _main(args: argparse.Namespace) -> int:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else text_tables.WIDTH)
    if not args.program.is_file():
        raise ArgumentError(f"expected a Python file or a file of calls, got {args.program}, which is no file")
    if lesser := cards.lesser():
        raise ArgumentError(
            f"{cards.AS_VARIABLE}: expected no variable here, got {lesser.key}: it stands for other code"
        )
    names = list(dict.fromkeys(args.card)) or _cards_here()
    for name in names:
        cards.named(name, "--card")  # a misspelt one is an error before the program runs
    seen = _seen(args, names[0])
    calls, raised = seen.calls, seen.raised
    if raised is not None:
        _explain(raised)
        terminal.say(PROGRAM, f"{args.program} ended there; what it called until then is compiled", terminal.FAILED)
    if seen.late:
        told = f"{args.program} was ended after {args.seconds:g} s; what it called until then is compiled"
        terminal.say(PROGRAM, told, terminal.OK)
    if not calls:
        raise ArgumentError(f"{args.program}: expected a call of an operator of kernelmux, got none")
    if args.keep:
        recorded_calls.write(args.keep, calls)
    whole = [_warmed(console, name, calls, args.n) for name in names]
    for what in KEPT:
        console.print(f"{what}: {doctor.CACHES[what]()}", markup=False, soft_wrap=True)
    return terminal.OK if raised is None and all(whole) else terminal.FAILED


def _cards_here() -> list[str]:
    """The GPUs of this machine, as --card takes them: by the driver's name, or by capability where that is not known."""
    names = []
    for index in range(torch.cuda.device_count()):
        name, capability = torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index)
        names.append(name if cards.by_device_name(name, capability) else "{}.{}".format(*capability))
    if not names:
        raise ArgumentError(f"--card: expected {CARD}, got none before the program, and torch sees no GPU here")
    return list(dict.fromkeys(names))


def _seen(args: argparse.Namespace, card: str) -> SeenCalls:
    """What a program calls, or a file has."""
    if args.keep:
        args.keep = args.keep.resolve()  # the program may go to another folder
        _check_writable(args.keep)
    if args.program.suffix == ".json":
        if args.words:
            raise ArgumentError(f"expected no arguments behind a file of calls, got {' '.join(args.words)}")
        return SeenCalls(dict.fromkeys(recorded_calls.read(args.program, PROGRAM), 1))
    return script.run(args.program, args.words, cards.named(card), args.steps, args.seconds)


def _check_writable(path: Path) -> None:
    """ArgumentError, before the program runs, if its calls could not be kept in this file."""
    try:
        with path.open("a") as file:
            empty = not file.tell()
    except OSError as error:
        raise ArgumentError(f"--keep: expected a file that can be written, got {path}: {error.strerror}") from None
    if empty:
        path.unlink()


def _explain(raised: BaseException) -> None:
    """Print what a program raised, without the lines of torch and of what watches it."""
    told = traceback.TracebackException.from_exception(raised)
    silent = (str(Path(torch.__file__).parent), str(Path(__file__).parent), "<frozen runpy>")
    told.stack = traceback.StackSummary.from_list([f for f in told.stack if not f.filename.startswith(silent)])
    print("".join(told.format(chain=False)), end="", file=sys.stderr)
    if isinstance(raised, VALUES):
        terminal.say(PROGRAM, f"it needs values, which tensors have not here: {INSTEAD}", terminal.FAILED)


def _warmed(console: Console, name: str, calls: Iterable[RecordedCall], most: int) -> bool:
    """Compile for one card, and say what came of it; whether all is compiled."""
    begun = time.monotonic()
    with standing(name, "--card"):
        title = cards.emulated().title
        chosen = pool.choices(calls)
        wanted = [one for one in chosen if one.ours]
        processes = max(1, min(most, len(wanted)))
        ending = pool.compile_all(wanted, processes)
        off = not console.is_terminal
        ended = list(track(ending, title, len(wanted), console=console, transient=True, disable=off))
    _show(console, [*ended, *(one for one in chosen if not one.ours)])
    lost = sum(bool(one.problem) for one in ended)
    refused = sum(bool(one.problem) for one in chosen)
    done, others = len(wanted) - lost, [one.backend for one in chosen if not (one.ours or one.problem)]
    told = f"{title}: {text_tables.counted(done, 'kind')} of calls compiled in {time.monotonic() - begun:.1f} s"
    told += f", {processes} at a time"
    told += f"; {len(others)} run on {', '.join(dict.fromkeys(others))}, which compiles nothing ahead" if others else ""
    told += f"; {lost + refused} not compiled" if lost + refused else ""
    console.print(told, markup=False, soft_wrap=True)
    return not (lost or refused)


def _show(console: Console, ended: Iterable[Compilation]) -> None:
    """A row for each variant of an operator: kinds of calls, the seconds of all, and why some are not compiled."""
    groups: dict[tuple[str, str], list[Compilation]] = {}
    for one in ended:
        groups.setdefault((one.call.op, one.variant), []).append(one)
    rows = [
        (op, variant or "-", str(len(group)), f"{sum(one.seconds for one in group):.1f}", _problems(group))
        for (op, variant), group in sorted(groups.items())
    ]
    columns = ("operator", "variant", "kinds", "seconds", "not compiled")
    console.print(
        text_tables.text(columns, rows, {"kinds", "seconds"}, {"not compiled"}, console.width),
        markup=False,
        soft_wrap=True,
    )


def _problems(group: Iterable[Compilation]) -> str:
    return "\n".join(f"{one.call}: {one.problem}" for one in group if one.problem)
