"""The command line: `kernelmux list | show | explain | support | doctor`, and the commands that other parts bring."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from kernelmux import __version__
from kernelmux.registry import backend as registered
from kernelmux.registry import catalog, dispatch, doctor, explanation, requests, selection, terminal
from kernelmux.registry.backend import Implementation
from kernelmux.registry.errors import ArgumentError, KernelmuxError, hint
from kernelmux.registry.machines import machine
from kernelmux.registry.support import support_matrix

EXAMPLES = """examples:
  kernelmux list
  kernelmux show softmax
  kernelmux explain matmul --shape a=64x63:fp16,b=63x64:fp16 --backend cuda
  kernelmux explain softmax --shape x=4096x8192:bf16,axis=0 --device sm_90
  kernelmux support --device sm_90
  kernelmux support matmul --device sm_90
  kernelmux emulate transpose --backend cuda/naive --shape x=64x64:fp32
  kernelmux check-model llama --dtype bf16
  kernelmux conformance --op softmax --backend triton
  kernelmux new op hardswish --like relu --package our_ops
  kernelmux doctor
"""

DEVICE = "cpu, cuda, or a capability such as sm_90 (default: cuda if there is one)"

# Commands of other parts: a module with `main(arguments)`, loaded by name when it is called, and help.
PROVIDED = {
    "emulate": (
        "kernelmux.perf.emulated.emulate",
        "run one call on the emulator: sectors, bank conflicts, a picture of them",
    ),
    "check-model": (
        "kernelmux.nn.check_command",
        "compare a patched model with the plain one and float64, layer by layer",
    ),
    "new": ("kernelmux.registry.scaffold.command", "write the files of a new operator: spec, three backends, test"),
}
# Programs of other parts, which end the process in ways of their own: run as `python -m` runs them.
PROGRAMS = {
    "conformance": ("kernelmux.conformance", "every backend against the specs; --check, --fuzz, --matrix"),
    "perf": ("kernelmux.perf", "time every backend and report against the roofline"),
    "tune": ("kernelmux.tune", "search the tiles of kernels for faster ones than their rule's"),
    "profile": ("kernelmux.perf.profile", "where the time of an operator or of a script goes"),
    "docs": ("kernelmux.docs", "write the generated pages, in a checkout"),
}


def _parser() -> argparse.ArgumentParser:
    parser = terminal.Parser(
        prog="kernelmux",
        description="One operator spec, many GPU kernels: what there is, who would run a call, and why.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"kernelmux {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    commands.add_parser("list", help="operators, and the variants of each backend")
    show = commands.add_parser(
        "show", help="one operator: formula, arguments, cases, implementations and their conditions"
    )
    show.add_argument("op")
    explain = commands.add_parser("explain", help="which variants can run a call, and why the others cannot")
    explain.add_argument("op")
    explain.add_argument(
        "--shape",
        required=True,
        metavar="NAME=MxN[:dtype],...",
        help="tensors by shape, scalars by value: x=37x1000:fp16,axis=0; 64x48.mT lies as the view of a [48, 64]",
    )
    explain.add_argument("--backend", help="as in a call: cuda, cuda/tiled, or a list to try in order: cuda,triton")
    explain.add_argument("--device", default=None, help=DEVICE)
    support = commands.add_parser(
        "support", help="which variants can run which operators on a device, and in which dtypes"
    )
    support.add_argument("op", nargs="?", help="one operator, with the conditions of its variants (default: all)")
    support.add_argument("--device", default=None, help=DEVICE)
    commands.add_parser("doctor", help="what of this machine the backends can use, and what is wrong")
    for name, (_, text) in (PROVIDED | PROGRAMS).items():
        commands.add_parser(name, help=text, add_help=False)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0 if all is well, 1 if a call cannot be run, 2 for a wrong command."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in PROVIDED:
        return int(import_module(PROVIDED[words[0]][0]).main(words[1:]))
    if words and words[0] in PROGRAMS:
        return terminal.run("kernelmux", lambda: _program(words[0], words[1:]))
    if not words:
        _parser().print_help()
        return terminal.OK
    names = (*COMMANDS, *PROVIDED, *PROGRAMS)
    if words[0] not in names and not words[0].startswith("-"):
        _parser().error(f"expected a command, got {words[0]!r}: {hint(words[0], names)}there are {', '.join(names)}")
    return terminal.run("kernelmux", lambda: _run(_parser().parse_args(words)))


def _program(name: str, words: list[str]) -> int:
    module = PROGRAMS[name][0]
    part = ".".join(module.split(".")[:2])
    if find_spec(part) is None:
        raise ArgumentError(f"{name}: expected a checkout of kernelmux: an installed package has no {part}")
    sys.argv = [f"kernelmux {name}", *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return terminal.OK  # all of them end in SystemExit


def _run(options: argparse.Namespace) -> int:
    # A pipe has no width of its own: give it one at which no name is broken.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    if options.command != "doctor":  # which says what is wrong, and goes on
        selection.check_environment()
    return int(COMMANDS[options.command](console, options))


def _list(console: Console, options: argparse.Namespace) -> int:
    table = Table(
        Column("operator", no_wrap=True, min_width=max(map(len, catalog.names()))),
        *(Column(escape(name), overflow="fold") for name in registered.backend_names()),
        title="variants in ladder order; the last that can run a call is the default",
        show_lines=True,
    )
    for op in catalog.usable():
        table.add_row(op, *(_ladder(name, op) for name in registered.backend_names()))
    console.print(table)
    for line in doctor.unusable():
        console.print(f"cannot be used: {line}", markup=False, soft_wrap=True)
    return 0


def _ladder(name: str, op: str) -> str:
    try:
        return escape(", ".join(registered.variants(name, op))) or "-"
    except Exception as error:  # of a package elsewhere: it may raise anything, and the others are listed all the same
        return _unusable(error)


def _unusable(error: Exception) -> str:
    kind = "" if isinstance(error, KernelmuxError) else f"{type(error).__name__}: "
    return escape(f"unavailable: {kind}{error}")


def _show(console: Console, options: argparse.Namespace) -> int:
    spec = catalog.spec(options.op)
    console.print(f"[bold]{spec.name}[/bold]{escape(str(spec.signature))}   version {spec.version}, hash {spec.hash}\n")
    console.print(escape(dispatch.documentation(spec)) + "\n")
    right = [c.text if c.inputs == "normal" else f"{c.text} ({c.inputs})" for c in spec.cases]
    console.print(f"must be right:  {escape('; '.join(right))}", soft_wrap=True)
    console.print(f"must be fast:   {escape('; '.join(c.text for c in spec.workloads))}\n", soft_wrap=True)
    table = Table("variant", "idea", "conditions", "layout", "accumulates")
    for name in registered.backend_names():
        for row in _implementations(name, spec.name):
            table.add_row(*row)
    console.print(table)
    return 0


def _implementations(name: str, op: str) -> Iterator[tuple[str, ...]]:
    """Table rows of one backend's ladder; one row with the reason where it cannot be loaded."""
    try:
        ladder = registered.variants(name, op)
    except Exception as error:
        yield escape(name), _unusable(error), "-", "-", "-"
        return
    for variant, i in ladder.items():
        layout = ", ".join(f"{k}: {v}" for k, v in i.layout.items()) or "any strides"
        conditions = "; ".join(c.text for c in i.requires) or "-"
        yield tuple(map(escape, (f"{name}/{variant}", i.idea, conditions, layout, _arithmetic(i))))


def _arithmetic(found: Implementation) -> str:
    given = found.arithmetic
    told = given if isinstance(given, str) else ", ".join(f"{output}: {name}" for output, name in given.items())
    return f"{told}; also rounds {found.declared}" if found.rounds else told


def _explain(console: Console, options: argparse.Namespace) -> int:
    spec = catalog.spec(options.op)
    where = machine(options.device, "--device")
    call = spec.hypothetical(spec.case(options.shape), device=where.device, capability=where.capability)
    asked = requests.parse(options.backend, "--backend") if options.backend else None
    request = selection.requested(spec.name, asked, call)
    decision = dispatch.decide(call, request, thorough=True, elsewhere=where.elsewhere)
    console.print(explanation.explained(decision, console.width), markup=False, soft_wrap=True)
    return 0 if decision.chosen else 1


def _support(console: Console, options: argparse.Namespace) -> int:
    matrix = support_matrix(options.device, options.op)
    console.print(matrix.table(console.width), markup=False, soft_wrap=True)
    return 0


def _doctor(console: Console, options: argparse.Namespace) -> int:
    found = doctor.report()
    console.print(doctor.text(found, console.width), markup=False, soft_wrap=True)
    return 1 if any(section.problems for section in found) else 0


COMMANDS = {"list": _list, "show": _show, "explain": _explain, "support": _support, "doctor": _doctor}


if __name__ == "__main__":
    sys.exit(main())
