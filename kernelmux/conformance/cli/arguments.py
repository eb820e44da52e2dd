"""The arguments of the command line: what they are, and what is refused before anything runs."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from typing import Any, NoReturn

import torch

from kernelmux.candidate.implementation import opening
from kernelmux.conformance.inputs import command_line_cases
from kernelmux.conformance.options import PROGRAM, Options
from kernelmux.conformance.report import artifacts
from kernelmux.conformance.session import expected_failures, plan, time_budget
from kernelmux.conformance.verified import ledger
from kernelmux.registry import catalog
from kernelmux.registry.call import temporary_backends
from kernelmux.registry.cases import TIERS
from kernelmux.registry.cli import target_device, terminal
from kernelmux.registry.errors import ArgumentError, UnknownName, unknown
from kernelmux.registry.util import cards
from kernelmux.runner.run import add_arguments

MOST_WORKERS = 256
MANY = 40  # names that an error still lists

EPILOG = """
examples:
  python -m kernelmux.conformance --tier smoke                         everything on small cases
  python -m kernelmux.conformance --op softmax --backend triton        one operator on one backend
  python -m kernelmux.conformance --backend cuda/tiled --check layout  one variant, one check, all operators
  python -m kernelmux.conformance --impl mine.py:softmax --op softmax  one function from any file
  python -m kernelmux.conformance --tier full --record                 on a GPU, and write down what passed
  python -m kernelmux.conformance --check integration                  programs of torch: vmap, compile, export, patch
  python -m kernelmux.conformance -k "softmax and not layout"          items by name, as with pytest
  python -m kernelmux.conformance --card rtx4090 --op matmul           as an RTX 4090 would run it
  python -m kernelmux.conformance --fits rtx4090 t4                    does what they would launch compile, and fit?
  python -m kernelmux.conformance --fuzz 100000 --seed 1               random calls of the public functions
  python -m kernelmux.conformance --list                               what would run

Without a GPU the CUDA and Triton kernels run on the emulator, with all of its checks.

A run of everything writes results.jsonl, matrix.md and report.html into the --out folder (results-TIER.jsonl and so on for
another tier than ci). A run of a part, or one that was stopped, writes results-partial.jsonl and so on, so that it never
replaces the results of a whole one. Each file is replaced at once, when the run ends.

Exit status: 0 all passed; 1 something failed, or a backend that could run here lacks a package (unless --backend leaves it
out); 2 usage error or nothing ran; 130 interrupted.
"""


class SuiteParser(terminal.Parser):
    """A parser whose errors are errors of ours: one line."""

    def error(self, message: str) -> NoReturn:
        raise ArgumentError(f"{self.meant(message)} (--help shows the options)")


def workers(text: str) -> str:
    """A number of processes, or auto."""
    if text != "auto" and not (text.isascii() and text.isdigit() and 1 <= int(text) <= MOST_WORKERS):
        raise argparse.ArgumentTypeError(f"expected auto or a number from 1 to {MOST_WORKERS}, got {text!r}")
    return text


def seed(text: str) -> int:
    """A whole number, in any of Python's notations."""
    try:
        return int(text, 0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}") from None


def parser() -> SuiteParser:
    program = terminal.program("kernelmux.conformance")
    made = SuiteParser(
        prog=program,
        description="Runs every registered implementation against the spec of its operator.",
        epilog=EPILOG.replace(PROGRAM, program),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _selection(made.add_argument_group("what runs"))
    _running(made.add_argument_group("how it runs"))
    made.add_argument("--program", default=program, help=argparse.SUPPRESS)  # what started this, for "reproduce:"
    _reports(made.add_argument_group("what it shows and writes"))
    _instead(made.add_argument_group("in place of a run, or beside it (one of these)").add_mutually_exclusive_group())
    return made


def _selection(made: Any) -> None:
    """What runs."""
    many: dict[str, Any] = {"nargs": "+", "action": "extend", "default": []}
    made.add_argument("--op", **many, metavar="OP", help="operators (default: all)")
    backends = 'backends "cuda" or variants "cuda/tiled"; "spec" judges the specs'
    made.add_argument("--backend", **many, metavar="B", help=backends)
    impl = "a function from any file, as the one operator of --op; without --backend nothing else runs"
    made.add_argument("--impl", default="", metavar="FILE.py:FUNCTION", help=impl)
    made.add_argument("--check", **many, metavar="NAME", help="checks (default: all; --list names them)")
    made.add_argument("--case", **many, metavar="NAME", help='cases: x37x1000, "*wide", or spelt out: x=5x1025,axis=0')
    trusted = "backends of other packages, or packages with operators, whose code runs in the suite's own processes"
    made.add_argument("--in-process", **many, metavar="NAME", help=trusted)
    formats = "dtypes such as fp16 bf16 fp32; without --op, operators that take none of them are left out"
    made.add_argument("--dtype", **many, metavar="T", help=formats)
    words = 'items by parts of their names: "softmax and not layout"'
    made.add_argument("-k", dest="keyword", default="", metavar="EXPRESSION", help=words)
    failed = "only items that failed when they last ran"
    made.add_argument("--last-failed", "--lf", action="store_true", help=failed)
    tier = "how large the cases may be (default: ci); without a limit of time where --tier ci or larger is given"
    made.add_argument("--tier", choices=TIERS, help=tier)
    minutes = (
        "what the run may take; within it no operator, backend or check is left out, and the report says what was not asked"
        " (default: 3 in tier smoke and 5 without --tier; on a GPU 1.5 and 5, a third of a minute for one operator; none"
        " with --check, --case, --dtype, --seed)"
    )
    made.add_argument("--minutes", type=terminal.minutes, metavar="N", help=minutes)
    anew = "of a whole run, ask what a GPU has passed as it stands as well; tier full does that anyway"
    made.add_argument("--anew", action="store_true", help=anew)
    seeds = "of all random inputs (default: 0); several: every item runs once for each"
    made.add_argument("--seed", type=seed, nargs="+", action="extend", default=[], metavar="N", help=seeds)
    device = "where the tensors are (default: cuda if there is a GPU)"
    made.add_argument("--device", choices=("cpu", "cuda"), help=device)
    card = (
        f"{target_device.CARD}: what the emulator stands for (default: an H200); on a GPU the variants of a lesser card"
    )
    made.add_argument("--card", metavar="CARD", help=card)
    fits = "does what the calls of each spec launch compile for these cards (default: all), and fit? runs nothing"
    made.add_argument("--fits", nargs="*", metavar="CARD", help=fits)


def _running(made: Any) -> None:
    """How it runs."""
    count = "worker processes, or auto (default: by the size of the run)"
    made.add_argument("-n", dest="workers", type=workers, metavar="N", help=count)
    stop = {"dest": "maxfail", "default": 0}
    made.add_argument("-x", "--exitfirst", action="store_const", const=1, **stop, help="stop at the first failing item")
    made.add_argument("--maxfail", type=terminal.positive, **stop, metavar="N", help="stop at the Nth failing item")
    add_arguments(made)
    made.add_argument("--pdb", action="store_true", help="open the debugger where a trial fails; one process")
    known = "more expected failures, beside those of the suite and in the folder of each backend's package"
    made.add_argument("--expected", nargs="+", action="extend", default=[], metavar="FILE", help=known)


def _reports(made: Any) -> None:
    """What it leaves behind."""
    told = made.add_mutually_exclusive_group()
    every = "a line for every item, and at the end the matrix by checks"
    told.add_argument("-v", "--verbose", action="store_true", help=every)
    told.add_argument("-q", "--quiet", action="store_true", help="failures and the last line alone")
    longest = "at the end the N items that took longest, 0 for all"
    made.add_argument("--durations", type=terminal.count, metavar="N", help=longest)
    xml = "also write the outcomes as JUnit XML"
    made.add_argument("--junitxml", "--junit-xml", "--junit", dest="junit", metavar="FILE", help=xml)
    reached = (
        "say which branches of launchers and which basic blocks of emulated kernels no trial has run; in tiers full"
        " and huge what is not waived fails the run"
    )
    made.add_argument("--coverage", action="store_true", help=reached)
    out = "for the reports (default: build/conformance)"
    made.add_argument("--out", default="build/conformance", metavar="FOLDER", help=out)


def _instead(made: Any) -> None:
    """What is done in place of, or beside, a run of the suite; one of these."""
    made.add_argument("--record", action="store_true", help="write what passed on this GPU into the verified ledger")
    table = "print the support matrix, of all operators or those of --op, or update it in FILE; runs nothing"
    made.add_argument("--matrix", nargs="?", const="", metavar="FILE", help=table)
    keys = "compute the keys of what changed sources launch, which need no GPU, and say which records still count; " + (
        "with `pins` all anew, by the compilers at hand"
    )
    made.add_argument("--rekey", nargs="?", const="missing", choices=("missing", "pins"), help=keys)
    mutants = "test the suite itself: run it on kernels that are broken on purpose"
    made.add_argument("--mutants", action="store_true", help=mutants)
    listed = "name checks and items, with -q items alone; runs nothing"
    made.add_argument("--list", "--collect-only", "--co", action="store_true", help=listed)
    fuzz = (
        "make N random calls, right and wrong, on the CPU: each returns what its spec says or raises an error of ours"
    )
    made.add_argument("--fuzz", type=terminal.positive, metavar="N", help=fuzz)
    only = "make the call of this number again, with the --seed and --op of the run"
    made.add_argument("--fuzz-only", type=terminal.count, metavar="INDEX", help=only)


def options_of(args: argparse.Namespace) -> Options:
    """The options of a command line; a KernelmuxError says what is wrong with it."""
    seeds = tuple(dict.fromkeys(args.seed)) or (0,)
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    chosen = Options(
        tuple(args.op),
        tuple(args.backend),
        tuple(args.check),
        tuple(args.case),
        tuple(args.dtype),
        args.tier or Options.tier,
        seeds[0],
        device,
        args.out,
        seeds if len(seeds) > 1 else (),
        tuple(args.expected),
        args.program,
        args.mutants,
        verbose=args.verbose,
        quiet=args.quiet,
        keyword=args.keyword.strip(),
        records=args.record,
        elsewhere=bool(args.cluster) and device == "cuda",
        coverage=not args.mutants and args.coverage,
        in_process=tuple(args.in_process),
    )
    if args.in_process:
        chosen = replace(chosen, program=f"{chosen.program} --in-process {shlex.join(args.in_process)}")
    chosen = _with_impl(chosen, args) if args.impl else chosen
    if args.card:
        chosen = replace(chosen, card=cards.named(args.card).key, program=f"{chosen.program} --card {args.card}")
    if chosen.device == "cuda" and not (chosen.elsewhere or torch.cuda.is_available()):
        raise ArgumentError("--device cuda: torch sees no GPU here")
    plan.matching((), chosen.keyword)
    _check_place(args)
    if args.junit and (lacking := terminal.missing(["junitparser"])):
        raise ArgumentError(f"--junitxml: {lacking}")
    if args.fits is not None:
        _check_fits(chosen, args)
        return chosen
    if args.matrix is not None:
        _check_matrix(chosen, args.matrix)
        return chosen
    if args.fuzz or args.fuzz_only is not None:
        _check_fuzz(chosen, args)
        return chosen
    if chosen.mutants:
        _check_mutants(chosen)
        return chosen
    chosen = replace(chosen, saves=True, pdb=args.pdb, only=_last_failed(chosen) if args.last_failed else ())
    with temporary_backends.joined(chosen.impl, "".join(chosen.ops), opening(chosen.device)):
        plan.check_names(chosen)
    _check_cases(chosen)
    expected_failures.books(chosen)
    return chosen if args.list else _limited(chosen, args)


def _limited(chosen: Options, args: argparse.Namespace) -> Options:
    """With the minutes that the run may take; then less is asked of what a GPU (of the same kind) has verified."""
    if args.minutes and args.record:
        raise ArgumentError("--record: a variant is on record if everything was asked; leave out --minutes")
    other = args.seed or args.record or args.pdb
    minutes = args.minutes or (time_budget.usual(chosen) if args.tier in (None, "smoke") and not other else 0.0)
    # Without a GPU the whole of tier ci takes a laptop more than an hour, nearly all of it for what a GPU has passed.
    beside = args.tier == "ci" and chosen.device == "cpu" and not (other or args.coverage)
    if args.anew or not (minutes or beside):
        return replace(chosen, minutes=minutes)
    # A part of the suite without a GPU is short enough; a card that stands for another runs other variants than those that
    # passed, and the GPUs of a cluster are of several kinds.
    relies = (chosen.device == "cuda" or chosen.everything) and not (chosen.card or chosen.elsewhere)
    kind = ledger.capability(chosen.where) if relies and chosen.device == "cuda" else ""
    return replace(chosen, minutes=minutes, verified=ledger.verified(chosen.ops, kind) if relies else ())


def _last_failed(chosen: Options) -> tuple[str, ...]:
    """What failed when it last ran; ArgumentError if nothing did."""
    if found := artifacts.last_failed(artifacts.folder(chosen)):
        return found
    raise ArgumentError(f"--last-failed: nothing is known to fail ({artifacts.folder(chosen) / artifacts.LAST_FAILED})")


def _with_impl(chosen: Options, args: argparse.Namespace) -> Options:
    """With the function of --impl, by its whole path; "reproduce:" repeats it."""
    if args.mutants or args.record:
        raise ArgumentError(f"--impl cannot be combined with {'--mutants' if args.mutants else '--record'}")
    temporary_backends.check_ops(chosen.ops)
    path, name = temporary_backends.located(args.impl)
    program = f"{chosen.program} --impl {shlex.quote(f'{args.impl}')}"
    return replace(
        chosen, backends=chosen.backends or (temporary_backends.NAME,), program=program, impl=f"{path}:{name}"
    )


def _check_place(args: argparse.Namespace) -> None:
    """What goes on in one process cannot go on or be elsewhere."""
    for name, given in (("--resume", args.resume), ("--cluster", args.cluster), ("--on", args.on)):
        others = {"--fits": args.fits is not None, "--fuzz": args.fuzz or args.fuzz_only is not None}
        if name != "--resume":
            others |= {"--pdb": args.pdb}
        for other, too in others.items():
            if given and too:
                raise ArgumentError(f"{other}: expected no {name} beside it")


def _check_matrix(chosen: Options, file: str) -> None:
    """The support matrix has all backends and says of variants what the whole suite said."""
    for name, given in (
        ("--backend", chosen.backends),
        ("--check", chosen.checks),
        ("--case", chosen.cases),
        ("--dtype", chosen.dtypes),
        ("-k", chosen.keyword),
    ):
        if given:
            raise ArgumentError(f"--matrix: expected no selection but --op, got {name}")
    if file and chosen.ops:
        raise ArgumentError(f"--matrix {file}: a file holds all operators, got --op {' '.join(chosen.ops)}")
    plan.check_names(chosen)


def _check_mutants(chosen: Options) -> None:
    """The suite's own test takes a part of its mutants, but nothing that changes what a check asks."""
    for name, given in (("--case", chosen.cases), ("--dtype", chosen.dtypes), ("--backend", chosen.backends)):
        if given:
            raise ArgumentError(
                f"--mutants: {name} cannot be combined with it; --op, --check and -k choose among the mutants"
            )
    plan.check_names(chosen)


def _check_fits(chosen: Options, args: argparse.Namespace) -> None:
    """The calls that a card is asked are those of the specs, whatever the tier."""
    others = {
        **{"--check": chosen.checks, "--case": chosen.cases, "--dtype": chosen.dtypes, "-k": chosen.keyword},
        **{"--tier": args.tier, "--minutes": args.minutes, "--card": args.card, "--device cuda": args.device == "cuda"},
        **{"--matrix": args.matrix is not None, "--rekey": args.rekey, "--mutants": args.mutants, "--list": args.list},
        **{"--fuzz": args.fuzz or args.fuzz_only is not None},
    }
    for name, given in others.items():
        if given:
            raise ArgumentError(f"--fits: expected no selection but --op, --backend and --seed, got {name}")
    plan.check_names(replace(chosen, backends=()))  # there is "auto", too


def _check_fuzz(chosen: Options, args: argparse.Namespace) -> None:
    """Calls are drawn for every backend that can run here, in every shape and dtype."""
    for name, given in (
        ("--backend", chosen.backends),
        ("--check", chosen.checks),
        ("--case", chosen.cases),
        ("--dtype", chosen.dtypes),
        ("-k", chosen.keyword),
        ("--tier", args.tier),
        ("--minutes", args.minutes),
    ):
        if given:
            raise ArgumentError(f"--fuzz: expected no selection but --op, got {name}")
    plan.check_names(chosen)


def _check_cases(chosen: Options) -> None:
    """A case that no chosen operator has is a mistake, and so is one that none can be called with, and such a dtype."""
    catalog.check_dtypes(chosen.ops, chosen.dtypes)
    specs = [catalog.spec(op) for op in chosen.ops or catalog.taking(chosen.dtypes)]
    for text in chosen.cases:
        if "=" in text:
            _check_spelt(text, chosen)
        elif not any(Options(cases=(text,)).cases_of(spec) for spec in specs):
            raise _unknown_case(text, sorted({case.name for spec in specs for case in spec.cases}))


def _check_spelt(text: str, chosen: Options) -> None:
    """ArgumentError unless some operator can be called so; of several refusals one of an operator with these tensors."""
    specs = [catalog.spec(op) for op in chosen.ops or catalog.usable()]
    refusals = [command_line_cases.refusal(spec, command_line_cases.case(spec, text), chosen.dtypes) for spec in specs]
    if all(refusals):
        near = [r for r, spec in zip(refusals, specs, strict=True) if command_line_cases.names_tensors(spec, text)]
        raise ArgumentError(f"--case {text}: {(near or refusals)[0]}")


def _unknown_case(text: str, every: list[str]) -> UnknownName:
    error = unknown("case", text, every)
    if len(every) < MANY:
        return error
    return UnknownName(str(error).replace(f"known: {', '.join(every)}", f"{len(every)} are known"))
