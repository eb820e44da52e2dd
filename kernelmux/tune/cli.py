"""The command line of the search."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from rich.console import Console

from kernelmux.perf.planning import plan
from kernelmux.perf.rows import output_files
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.registry import catalog, dtypes, elsewhere
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend import tuned_configs
from kernelmux.registry.backend.tuned_configs import TunedConfig
from kernelmux.registry.cases import CHANNELS_LAST, TIERS, Case
from kernelmux.registry.cli import terminal
from kernelmux.registry.errors import ArgumentError, KernelmuxError
from kernelmux.registry.spec import OpSpec
from kernelmux.registry.util import user_folder
from kernelmux.registry.util.files import between
from kernelmux.runner.interrupts import INTERRUPTED, interrupts
from kernelmux.runner.item import WorkItem
from kernelmux.runner.machine import Workers
from kernelmux.runner.results import folder as writable_folder
from kernelmux.runner.run import RunReport, TimeLimit, add_arguments, chosen, execute
from kernelmux.tune import report, tables
from kernelmux.tune.job import Job
from kernelmux.tune.progress import Progress
from kernelmux.tune.search import Search, known
from kernelmux.tune.suite import ALWAYS, TuneSuite

OK, FAILED = 0, 1
MARKER = "<!-- tuned -->"
SHARE = 16 << 30  # bytes of a GPU for each process that candidates and checks are spread over
ON = "the kind of card to search for, or a part of its name, where there are several"
EPILOG = """
examples:
  python -m kernelmux.tune --op matmul --backend triton                     every variant and workload
  python -m kernelmux.tune --op matmul --backend triton/persistent --workload "a=1000x3000 b=3000x5000" --dtype bf16
  python -m kernelmux.tune --op conv2d --channels-last --dtype fp16
  python -m kernelmux.tune --op matmul --backend triton --dry-run           what would be timed; needs no GPU
  python -m kernelmux.tune --list                                           the tables, and which entries are stale

What a search finds is kept as tuned/<gpu>.json in your folder, where plans look it up (KERNELMUX_HOME, else
~/.local/share/kernelmux); --into-checkout keeps it in records/<gpu>/, with what ships. What was timed is kept too, in the
folder of --log: a search that was stopped goes on where it was. Exit status: 0 done, 1 a configuration computes something
wrong, 2 usage error or nothing to search, 130 Ctrl-C.
"""


def parser() -> argparse.ArgumentParser:
    program = terminal.program("kernelmux.tune")
    made = terminal.Parser(
        prog=program,
        description="Searches the configurations that kernels declare for those that are faster than their rule's.",
        epilog=EPILOG.replace("python -m kernelmux.tune", program),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _selection(made)
    made.add_argument(
        "--most", type=terminal.positive, default=64, metavar="N", help="configurations per search (default: 64)"
    )
    made.add_argument(
        "--limit",
        type=terminal.seconds,
        default=3600.0,
        metavar="S",
        help="seconds after which nothing more is compiled or timed (default: 3600)",
    )
    same = "the same in minutes, as the other programs have it"
    made.add_argument("--minutes", type=terminal.minutes, metavar="N", help=same)
    made.add_argument("--jobs", type=terminal.positive, metavar="N", help="processes side by side (default: the CPUs)")
    add_arguments(made, resume=False, on=ON)
    made.add_argument("--tier", choices=TIERS[:-1], default="ci", help="of the checks of a winner (default: ci)")
    out = made.add_mutually_exclusive_group()
    out.add_argument("--out", metavar="FOLDER", help="of tables (default: yours, where plans look them up)")
    shipped = "keep the tables in kernelmux/records, or in the package with operators whose variants they are about"
    out.add_argument("--into-checkout", action="store_true", help=shipped)
    made.add_argument("--log", default="build/tune", metavar="FOLDER", help="of times so far (default: build/tune)")
    made.add_argument("--dry-run", action="store_true", help="compile and list, time nothing; needs no GPU")
    listed = "list the tables, yours and those that ship, or those of --out; runs nothing"
    made.add_argument("--list", action="store_true", help=listed)
    made.add_argument("--update", metavar="FILE", help="write the tables between the markers in FILE; runs nothing")
    return made


def _selection(made: argparse.ArgumentParser) -> None:
    help_of = {
        "--op": ("OP", "operators (default: all that declare a space)"),
        "--backend": ("B", 'backends "triton" or variants "triton/persistent" (default: all that declare a space)'),
        "--workload": ("TEXT", 'workloads by name or pattern, or shapes such as "a=64x64:bf16 b=64x64" (default: all)'),
        "--dtype": ("T", "dtypes such as bf16 fp16 fp32 (default: bf16 and fp32)"),
    }
    for name, (metavar, text) in help_of.items():
        made.add_argument(name, nargs="+", action="extend", default=[], metavar=metavar, help=text)
    made.add_argument("--channels-last", action="store_true", help="adds channels-last to workloads of images")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    return terminal.run("tune", lambda: _main(parser().parse_args(arguments)))


def _main(args: argparse.Namespace) -> int:
    console = Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=120)
    if args.list:
        for folder in (
            [Path(args.out)]
            if args.out
            else dict.fromkeys(tables.place.folder for tables in tuned_configs.TABLES.all())
        ):
            for line in report.listing(folder):
                console.print(line, markup=False, soft_wrap=True)
        return OK
    if args.update is not None:
        return _update(console, Path(args.update), Path(args.out or tuned_configs.TABLES.place.folder))
    for op in args.op:
        catalog.spec(op)  # a misspelt operator is named before a missing GPU
    catalog.check_dtypes(args.op, args.dtype)
    gpu = torch.cuda.is_available()
    if not (gpu or args.cluster or args.dry_run):
        raise ArgumentError("torch sees no GPU here, and nothing else can be timed; --dry-run lists what would be")
    if not args.op and (left := catalog.left_out(args.dtype)):
        console.print(left, markup=False, soft_wrap=True)
    found = list(dict.fromkeys(jobs(args, "cuda" if gpu and not args.cluster else "cpu")))
    if not found:
        raise ArgumentError("nothing to search: no variant with a space can run a call of this selection")
    return _search(console, found, args)


def jobs(args: argparse.Namespace, device: str) -> Iterator[Job]:
    """The variants with a space, for each workload in each dtype that they can run."""
    labels = [registered.split(label, "--backend") for label in args.backend if label != "all"]
    for op in args.op or catalog.usable():
        spec = catalog.spec(op)
        for name in registered.backend_names():
            wanted = [variant for head, variant in labels if head == name] if labels else [None]
            for variant in _searchable(name, op, wanted, named=bool(labels) and op in args.op):
                yield from _of_variant(spec, name, variant, args, device)


def _searchable(backend: str, op: str, wanted: Sequence[str | None], named: bool) -> list[str]:
    """The variants with a space; none of a module that cannot be used, which is an error where both are named."""
    if not wanted or registered.unavailable(backend, torch.device("cuda" if torch.cuda.is_available() else "cpu")):
        return []
    try:
        ladder = registered.variants(backend, op)
    except KernelmuxError:
        if named:
            raise
        return []
    return [v for v, found in ladder.items() if found.space and (None in wanted or v in wanted)]


def _of_variant(spec: OpSpec, backend: str, variant: str, args: argparse.Namespace, device: str) -> Iterator[Job]:
    asked = PerfOptions((spec.name,) if len(args.op) == 1 else (), workloads=tuple(args.workload), device="cuda")
    usual = [dtypes.parse(name) for name in args.dtype] or [*plan.USUAL]
    for case in plan.workloads(spec, asked):
        text, spelt = _without_dtypes(case)
        if args.channels_last and spec.images and CHANNELS_LAST not in text:
            text += f" {CHANNELS_LAST}"
        for dtype in spelt or usual:
            if dtype in spec.dtypes and (case.dtypes is None or dtype in case.dtypes):
                job = Job(spec.name, backend, variant, text, dtypes.SHORT[dtype])
                if not job.reasons(device):
                    yield job


def _without_dtypes(case: Case) -> tuple[str, list[torch.dtype]]:
    """ "a=64x64:bf16 b=64x64:bf16" without the dtype that all its tensors have, and that; another text as it is."""
    formats = set(case.parsed[2].values())
    return (re.sub(r":\w+", "", case.text), [*formats]) if len(formats) == 1 else (case.text, [])


def _search(console: Console, found: list[Job], args: argparse.Namespace) -> int:
    home = writable_folder(Path(args.log), "--log")
    if not args.dry_run:
        writable_folder(_folder(args), "--out")
    progress = Progress(console)
    suite = TuneSuite(found, args.most, args.tier, known(home), progress, times=not args.dry_run)
    limit = TimeLimit(time.monotonic() + (60 * args.minutes if args.minutes else args.limit), required=ALWAYS)
    asked = {"jobs": [job.name for job in found], "most": args.most, "tier": args.tier}

    def items(cards: Sequence[str]) -> list[WorkItem]:
        return suite.items(card(cards, args.on, args.dry_run))

    with progress:
        ran = execute(suite, items, _workers(args, len(found)), home, asked, False, limit, args.cluster, keep=True)
    if len(ran.rows):
        console.print(f"{len(ran.rows)} items: {ran.usage}", markup=False, soft_wrap=True)
    report.show(console, suite.searches)
    if args.dry_run:
        console.print("nothing was timed: --dry-run")
    else:
        with interrupts.held():
            _write(console, suite.searches, args)
    return _status(suite.searches, ran)


def _workers(args: argparse.Namespace, jobs: int) -> Workers:
    """Processes without a GPU compile, one for each GPU times, and those that share GPUs find candidates and check."""
    share = SHARE if jobs > 1 else sys.maxsize  # one is enough
    return Workers(cpu=True, gpu=share, alone=not args.dry_run, most=args.jobs)


def card(cards: Sequence[str], on: Sequence[str], dry: bool) -> str:
    """The kind of card of a search, of those that there are; "" without one, for which a dry run suffices."""
    found = chosen(cards, on) or cards
    if len(found) > 1:
        raise ArgumentError(f"--on: expected one kind of card for a search, of {', '.join(found)}")
    if not found and not dry:
        raise ArgumentError("no GPU is found, and nothing else can be timed; is nvidia-ml-py installed?")
    return (*found, "")[0]


def _write(console: Console, searches: Sequence[Search], args: argparse.Namespace) -> None:
    """Write the tables of what was found, which may be less than was asked for."""
    entries, refuted, paths = list(tables.entries(searches)), tables.refuted(searches), []
    ended = [search for search in searches if search.found]
    for out in dict.fromkeys(_table_of(search.job, _folder(args)) for search in ended):
        own = [entry for entry in entries if _table_of(entry, _folder(args)) == out]
        paths.append(str(tables.write(own, ended[0].gpu, out, refuted)))
    told = f"{len(entries)} of {len(searches)} searches found a faster configuration: {', '.join(paths)}"
    console.print(told, markup=False, soft_wrap=True)


def _status(searches: Sequence[Search], ran: RunReport) -> int:
    if ran.interrupted:
        return terminal.say("tune", "interrupted", INTERRUPTED)
    for error in ran.errors:
        terminal.say("tune", error, terminal.USAGE)
    if ran.errors or not any(search.found for search in searches):
        return terminal.USAGE
    return FAILED if any(s.measured and s.measured.wrong for s in searches) else OK


def _folder(args: argparse.Namespace) -> Path:
    """The folder of tables: that of --out, the one that ships, or the user's."""
    if args.out:
        return Path(args.out)
    tables = tuned_configs.TABLES
    return tables.place.folder if args.into_checkout else user_folder.required(tables.name, "--out")


def _table_of(found: Job | TunedConfig, out: Path) -> Path:
    """The folder of tables for a variant: `out`; in place of the one that ships, for a package with operators its own."""
    package = elsewhere.whose(found.op, found.variant)
    tables = tuned_configs.TABLES
    return package.folder / tables.name if package and out == tables.place.folder else out


def _update(console: Console, path: Path, folder: Path) -> int:
    output_files.writable(path, "--update")
    end = MARKER.replace("!-- ", "!-- /")
    try:
        text = between(path.read_text(encoding="utf-8"), MARKER, end, report.markdown(folder))
    except (OSError, ValueError) as error:
        raise ArgumentError(f"--update: {path}: expected a text with {MARKER} ... {end}: {error}") from error
    output_files.write(path, text)
    console.print(f"updated {path}", markup=False)
    return OK
