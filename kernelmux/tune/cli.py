"""The command line of the search."""

from __future__ import annotations

import argparse
import os
import re
import sys
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
from kernelmux.registry.spec import Call, OpSpec
from kernelmux.registry.util import user_folder
from kernelmux.registry.util.files import between, file_stem
from kernelmux.tune import report, run
from kernelmux.tune.job import CAPABILITY, Job
from kernelmux.tune.log import TuningLog
from kernelmux.tune.progress import Progress

OK, FAILED = 0, 1
MARKER = "<!-- tuned -->"
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
        help="seconds for compiling, and as many for times (default: 3600)",
    )
    made.add_argument("--jobs", type=terminal.positive, metavar="N", help="processes side by side (default: the CPUs)")
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
    if not gpu and not args.dry_run:
        raise ArgumentError("torch sees no GPU here, and nothing else can be timed; --dry-run lists what would be")
    if not args.op and (left := catalog.left_out(args.dtype)):
        console.print(left, markup=False, soft_wrap=True)
    found = list(jobs(args, "cuda" if gpu else "cpu"))
    if not found:
        raise ArgumentError("nothing to search: no variant with a space can run a call of this selection")
    return _search(console, found, args, "cuda" if gpu else "cpu")


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
                if not job.implementation.reasons(_call_of(spec, job, device)):
                    yield job


def _without_dtypes(case: Case) -> tuple[str, list[torch.dtype]]:
    """ "a=64x64:bf16 b=64x64:bf16" without the dtype that all its tensors have, and that; another text as it is."""
    formats = set(case.parsed[2].values())
    return (re.sub(r":\w+", "", case.text), [*formats]) if len(formats) == 1 else (case.text, [])


def _call_of(spec: OpSpec, job: Job, device: str) -> Call:
    capability = torch.cuda.get_device_capability() if device == "cuda" else CAPABILITY
    return spec.hypothetical(
        spec.case(job.workload), dtypes.parse(job.dtype), torch.device(device), capability=capability
    )


def _search(console: Console, found: list[Job], args: argparse.Namespace, device: str) -> int:
    gpu = torch.cuda.get_device_name() if device == "cuda" else "no GPU"
    folder, processes = Path(args.log), args.jobs or os.cpu_count() or 1
    settings = run.Settings(args.most, args.limit, processes, args.tier)
    log, progress = TuningLog(folder / f"{file_stem(gpu)}.jsonl"), Progress(console)
    output_files.folder(Path(args.log), "--log")
    searches = run.begin(found, device, args.most)
    run.compile_all(searches, settings, log, progress)
    if args.dry_run:
        report.show(console, searches)
        console.print("nothing was timed: --dry-run")
        return OK
    output_files.folder(_folder(args), "--out")
    run.time_all(searches, settings, log, progress)
    run.check_winners(searches, settings, progress)
    report.show(console, searches)
    entries, refuted = list(run.entries(searches)), run.refuted(searches)
    paths = []
    for out in dict.fromkeys(_table_of(search.job, _folder(args)) for search in searches):
        own = [entry for entry in entries if _table_of(entry, _folder(args)) == out]
        paths.append(str(run.write(own, gpu, out, refuted)))
    told = f"{len(entries)} of {len(searches)} searches found a faster configuration: {', '.join(paths)}"
    console.print(told, markup=False, soft_wrap=True)
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
