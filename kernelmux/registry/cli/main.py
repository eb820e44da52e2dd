"""The command line: `kernelmux list | show | explain | support | doctor | completion`, and the commands of other parts."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from kernelmux import __version__
from kernelmux.registry import catalog
from kernelmux.registry.backend import device_tables
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.description import Implementation
from kernelmux.registry.call import dispatch
from kernelmux.registry.choice import decision as explanation
from kernelmux.registry.choice import precedence, requests
from kernelmux.registry.cli import completion, doctor, json_form, terminal
from kernelmux.registry.cli.support_matrix import SupportMatrix, support_matrix
from kernelmux.registry.cli.target_device import CARD, TargetDevice, machine, standing
from kernelmux.registry.errors import ArgumentError, described, hint
from kernelmux.registry.spec.op_spec import OpSpec

EXAMPLES = """examples:
  kernelmux list
  kernelmux show softmax
  kernelmux explain matmul --shape a=64x63:fp16,b=63x64:fp16 --backend cuda
  kernelmux explain softmax --shape x=4096x8192:bf16,axis=0 --device sm_90
  kernelmux support --device sm_90
  kernelmux support matmul --card rtx4090
  kernelmux support --cards
  kernelmux emulate transpose --backend cuda/naive --shape x=64x64:fp32
  kernelmux check-model llama --dtype bf16
  kernelmux warm --card h100 train.py
  kernelmux conformance --op softmax --backend triton
  kernelmux ledger --stale
  kernelmux new op hardswish --like relu --package our_ops
  kernelmux doctor --json
"""

NONE: Mapping[str, argparse.ArgumentParser] = MappingProxyType({})
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
    "ledger": (
        "kernelmux.conformance.cli.ledger_command",
        "which variants passed the suite on which GPU, as they stand",
    ),
    "judge": ("kernelmux.judge.cli", "a verdict on a function from any file, which runs in a process of its own"),
    "warm": ("kernelmux.warm.cli", "compile the kernels that a program will launch, on all cores, before it runs"),
    "new": ("kernelmux.registry.scaffold.command", "write the files of a new operator: spec, three backends, test"),
}
# Programs of other parts, which end the process in ways of their own: run as `python -m` runs them. The last is the module
# with `parser()`, for completion.
PROGRAMS = {
    "conformance": (
        "kernelmux.conformance",
        "every backend against the specs; --check, --fuzz, --matrix",
        "kernelmux.conformance.cli.arguments",
    ),
    "perf": ("kernelmux.perf", "time every backend and report against the roofline", "kernelmux.perf.cli.main"),
    "tune": ("kernelmux.tune", "search the tiles of kernels for faster ones than their rule's", "kernelmux.tune.cli"),
    "profile": (
        "kernelmux.perf.profile",
        "where the time of an operator or of a script goes",
        "kernelmux.perf.profile.cli",
    ),
    "docs": ("kernelmux.docs", "write the generated pages, in a checkout; --package", "kernelmux.docs.__main__"),
}


def _parser(others: Mapping[str, argparse.ArgumentParser] = NONE) -> argparse.ArgumentParser:
    """The command line. others: the parsers of commands of other parts, where their options matter."""
    parser: argparse.ArgumentParser = terminal.Parser(
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
    explain.add_argument("--card", metavar="CARD", help=CARD)
    support = commands.add_parser(
        "support", help="which variants can run which operators on a device, and in which dtypes"
    )
    support.add_argument("op", nargs="?", help="one operator, with the conditions of its variants (default: all)")
    support.add_argument("--device", default=None, help=DEVICE)
    support.add_argument("--card", metavar="CARD", help=CARD)
    every = "on record of every card: which operators compile for it and fit on it"
    support.add_argument("--cards", action="store_true", help=every)
    commands.add_parser("doctor", help="what of this machine the backends can use, and what is wrong")
    for command in commands.choices.values():
        command.add_argument("--json", action="store_true", help="as one JSON document")
    shell = commands.add_parser("completion", help="print a script that completes these commands in a shell")
    shell.add_argument("shell", choices=completion.SHELLS)
    for name, (_, text, *_) in (PROVIDED | PROGRAMS).items():
        commands.add_parser(name, help=text, add_help=False, parents=[others[name]] if name in others else [])
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
    if not _installed(module):
        raise ArgumentError(f"{name}: expected a checkout of kernelmux: an installed package has no {module}")
    sys.argv = [f"kernelmux {name}", *words]
    with terminal.started_as(sys.argv[0]):
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    return terminal.OK  # all of them end in SystemExit


def _installed(module: str) -> bool:
    """Whether the part of a module is there; some are in a checkout alone."""
    return find_spec(".".join(module.split(".")[:2])) is not None


def _run(options: argparse.Namespace) -> int:
    # A pipe has no width of its own: give it one at which no name is broken.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    if options.command != "doctor":  # which says what is wrong, and goes on
        precedence.check_environment()
    return int(COMMANDS[options.command](console, options))


def _answer(options: argparse.Namespace, document: Callable[[], json_form.Document], show: Callable[[], None]) -> None:
    """Print one of the two forms of an answer."""
    if options.json:
        print(json_form.text(document()))
    else:
        show()


def _list(console: Console, options: argparse.Namespace) -> int:
    _answer(options, json_form.listed, lambda: _print_list(console))
    return 0


def _print_list(console: Console) -> None:
    console.print(_operators())
    for line in doctor.unusable():
        console.print(f"cannot be used: {line}", markup=False, soft_wrap=True)


def _operators() -> Table:
    table = Table(
        Column("operator", no_wrap=True, min_width=max(map(len, catalog.names()))),
        *(Column(escape(name), overflow="fold") for name in registered.backend_names()),
        title="variants in ladder order; the last that can run a call is the default",
        show_lines=True,
    )
    for op in catalog.usable():
        table.add_row(op, *(_ladder(name, op) for name in registered.backend_names()))
    return table


def _ladder(name: str, op: str) -> str:
    try:
        return escape(", ".join(registered.variants(name, op))) or "-"
    except Exception as error:  # of a package elsewhere: it may raise anything, and the others are listed all the same
        return _unusable(error)


def _unusable(error: Exception) -> str:
    return escape(f"unavailable: {described(error)}")


def _show(console: Console, options: argparse.Namespace) -> int:
    spec = catalog.spec(options.op)
    _answer(options, lambda: json_form.operator(spec), lambda: _describe(console, spec))
    return 0


def _describe(console: Console, spec: OpSpec) -> None:
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


def _implementations(name: str, op: str) -> Iterator[tuple[str, ...]]:
    """Table rows of one backend's ladder; one row with the reason where it cannot be loaded."""
    try:
        ladder = registered.variants(name, op)
    except Exception as error:
        yield escape(name), _unusable(error), "-", "-", "-"
        return
    for variant, i in ladder.items():
        layout = ", ".join(f"{k}: {v}" for k, v in i.layout.items()) or "any strides"
        conditions = "; ".join(i.wording) or "-"
        yield tuple(map(escape, (f"{name}/{variant}", i.idea, conditions, layout, _arithmetic(i))))


def _arithmetic(found: Implementation) -> str:
    given = found.arithmetic
    told = given if isinstance(given, str) else ", ".join(f"{output}: {name}" for output, name in given.items())
    return f"{told}; also rounds {found.declared}" if found.rounds else told


def _explain(console: Console, options: argparse.Namespace) -> int:
    with ExitStack() as inside:
        card = inside.enter_context(standing(options.card, "--card"))
        if card and options.device is None:  # its times are known, as far as a GPU of its kind has any
            inside.enter_context(device_tables.of_emulated())
        return _explain_decision(console, options, machine(options.device, "--device", card))


def _explain_decision(console: Console, options: argparse.Namespace, where: TargetDevice) -> int:
    spec = catalog.spec(options.op)
    call = spec.hypothetical(spec.case(options.shape), device=where.device, capability=where.capability)
    asked = requests.parse(options.backend, "--backend") if options.backend else None
    request = precedence.requested(spec.name, asked, call)
    decision = dispatch.decide(call, request, thorough=True, elsewhere=where.elsewhere)
    _answer(options, lambda: json_form.decision(decision), lambda: _say(console, explanation.decision_text, decision))
    return 0 if decision.chosen else 1


def _support(console: Console, options: argparse.Namespace) -> int:
    if options.cards:
        return _support_of_cards(console, options)
    matrix = support_matrix(options.device, options.op, options.card)
    _answer(options, lambda: json_form.support(matrix), lambda: _say(console, SupportMatrix.table, matrix))
    return 0


def _support_of_cards(console: Console, options: argparse.Namespace) -> int:
    if options.device or options.card:
        raise ArgumentError(f"--cards: tells of every card; leave out --{'device' if options.device else 'card'}")
    ops = (catalog.spec(options.op).name,) if options.op else ()
    table = import_module("kernelmux.conformance.fits.table")
    _answer(options, lambda: table.document(ops), lambda: _say(console, table.text, ops))
    return 0


def _doctor(console: Console, options: argparse.Namespace) -> int:
    found = doctor.report()
    _answer(options, lambda: json_form.machine(found), lambda: _say(console, doctor.text, found))
    return 1 if any(section.problems for section in found) else 0


def _completion(console: Console, options: argparse.Namespace) -> int:
    places = {name: given[0] for name, given in PROVIDED.items()} | {
        name: given[-1] for name, given in PROGRAMS.items()
    }
    here = {name: place for name, place in places.items() if _installed(place)}
    text, lacking = completion.script(options.shell, here, _parser)
    print(text)
    for line in lacking:
        terminal.say("kernelmux completion", line, terminal.OK)
    return terminal.OK


def _say(console: Console, text: Callable[[Any, int], str], what: Any) -> None:
    """Print a text that fits the width."""
    console.print(text(what, console.width), markup=False, soft_wrap=True)


COMMANDS = {
    "list": _list,
    "show": _show,
    "explain": _explain,
    "support": _support,
    "doctor": _doctor,
    "completion": _completion,
}


if __name__ == "__main__":
    sys.exit(main())
