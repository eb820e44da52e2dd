"""The command line of the harness."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from kernelmux.perf.against.session import ROUNDS
from kernelmux.perf.cli import against, command, front, random_sweep
from kernelmux.perf.cli import sweep as sweeping
from kernelmux.perf.planning import brief, plan, time_budget
from kernelmux.perf.planning.time_budget import TimeBudget
from kernelmux.perf.rows import machine
from kernelmux.perf.rows.options import QUICK_SAMPLES, REST_SECONDS, SAMPLES, PerfOptions
from kernelmux.perf.session.items import JOBS, QUIET, compiling_processes
from kernelmux.perf.timing import noise_floor
from kernelmux.registry.backend import tamper_guard
from kernelmux.registry.call import temporary_backends
from kernelmux.registry.cli import target_device, terminal
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.util import cards, user_folder
from kernelmux.runner.run import add_arguments

OUTPUTS = ("--out", "--html")
LIMIT, QUICK_LIMIT = 120.0, 45.0  # seconds of a row
FEW = 2  # operators
MINUTES = (
    "of the whole run: no row begins after them, and what was left out is named (default: 5 on a GPU and 2 on a CPU"
    " without a selection, 0.7 per operator with --op alone on a GPU, else no limit)"
)
# With one of these the rows that fit are timed as for a record: a fixed number of samples, and all columns.
RIGOROUS = tuple(
    "every_row workload dtype samples quick aa peers impl stale into_checkout sweep against random".split()
)
HERE_ALONE = ("against", "card", "impl", "overhead", "stale", "sweep")  # what --cluster does not go with
OK = 0

EPILOG = """
examples:
  python -m kernelmux.perf                                        a report in minutes: a line per operator
  python -m kernelmux.perf --op matmul                            every variant of one operator
  python -m kernelmux.perf --every-row                            every variant, dtype and workload: hours on a GPU
  python -m kernelmux.perf --op softmax --backend cuda/online     one variant, beside torch
  python -m kernelmux.perf --workload large --dtype bf16          the largest workload of each operator
  python -m kernelmux.perf --op softmax --workload "x=64x32768"   a shape of your own
  python -m kernelmux.perf --op softmax --peers                   beside torch.compile, QuACK, Liger, FlagGems
  python -m kernelmux.perf --op attention --peers                 beside cuDNN and FlashAttention
  python -m kernelmux.perf --op softmax --impl mine.py:softmax    one function from any file
  python -m kernelmux.perf --sweep softmax:N=256..65536 --plot    time and rate over the length of rows: picture, CSV
  python -m kernelmux.perf --sweep matmul:M=N=K=256..8192:x2      each length twice the last, for all three axes
  python -m kernelmux.perf --show-sweeps                          the curves on record
  python -m kernelmux.perf --random 40 --family products rows     40 random shapes each, beside all peers
  python -m kernelmux.perf --aa                                   every variant twice, to measure noise
  python -m kernelmux.perf --overhead                             what a call costs on the host
  python -m kernelmux.perf --record                               the report, its times kept where "auto" reads them
  python -m kernelmux.perf --against main                         which rows became slower or faster since
  python -m kernelmux.perf --stale --record                       the rows on record that are stale
  python -m kernelmux.perf --export mine.json                     your record of this GPU, for a pull request
  python -m kernelmux.perf --show                                 what was recorded
  python -m kernelmux.perf --render kernelmux/records/nvidia_h200/perf.json --html report.html     a page of it

On a GPU: device time with a cold L2 cache, against ceilings measured in the same process; each output is checked.
Without options: per operator one workload in one dtype, beside torch and torch.compile. That, and --op alone, are timed
until the median is known to 0.5 % and end after --minutes; what did not fit is named. With more options, or --every-row:
a fixed number of samples of every row that fits them, without a limit.
Without a GPU: torch on the CPU, the host time of the dispatcher, what the kernels need of a multiprocessor, and recorded
results. Exit status: 0 all rows were timed and right, 1 a row failed, became slower, its two timings disagree (--aa), or a
backend that could run here lacks its package (install it, or leave it out by --backend), 2 usage error or nothing to run,
130 Ctrl-C (the rows that were timed are kept). Earlier results with rows that a run does not time are kept in the folder
of --out, as results-<time>.json.

With --against: 0 no row is slower (those of equal sources are not timed), 1 a row is SLOWER, or fails here, 2 usage error
or a tree that cannot be imported, 3 nothing to compare: no row that can run is in both trees, 130 Ctrl-C. The verdicts
are against.md and against.json in the folder of --out.
"""


def parser() -> argparse.ArgumentParser:
    program = terminal.program("kernelmux.perf")
    made = terminal.Parser(
        prog=program,
        description="Times every registered implementation of every operator and reports it against the roofline.",
        epilog=EPILOG.replace("python -m kernelmux.perf", program),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _selection(made)
    _timing(made)
    sweeping.add(made)
    random_sweep.add(made)
    _against(made)
    _reports(made)
    add_arguments(made)
    return made


def _selection(made: argparse.ArgumentParser) -> None:
    help_of = {
        "--op": ("OP", "operators, with all variants (default: all operators, with one variant of each backend)"),
        "--backend": ("B", 'backends "cuda" or variants "cuda/tiled" (default: all); torch_ref always runs too'),
        "--workload": ("TEXT", 'workloads by name or pattern, "large", or shapes such as "x=64x32768" (default: all)'),
        "--dtype": ("T", "dtypes such as bf16 fp16 fp32, or all (default: bf16 and fp32)"),
    }
    for name, (metavar, text) in help_of.items():
        made.add_argument(name, nargs="+", action="extend", default=[], metavar=metavar, help=text)
    impl = "a function from any file, as the one operator of --op, beside torch and the best variant of each backend"
    made.add_argument("--impl", default="", metavar="FILE.py:FUNCTION", help=impl)
    again = "the stale rows on record (what they launch has changed), beside torch; --record brings them up to date"
    made.add_argument("--stale", action="store_true", help=again)
    made.add_argument(
        "--every-row", action="store_true", help="every variant, dtype and workload that fits, however long"
    )
    listed = "list the rows, and why some cannot run; runs nothing"
    made.add_argument("--list", "--collect-only", "--co", action="store_true", help=listed)


def _timing(made: argparse.ArgumentParser) -> None:
    made.add_argument("--device", choices=("cuda", "cpu"), help="where to time (default: cuda if there is a GPU)")
    card = (
        f"{target_device.CARD}: what the emulator stands for; on a GPU the variants of a lesser card (never recorded)"
    )
    made.add_argument("--card", metavar="CARD", help=card)
    made.add_argument("--quick", action="store_true", help=f"one dtype, the largest workload, {QUICK_SAMPLES} samples")
    alone = "device times alone, until each is known to 0.5 %%: no held state, host time or time in a graph"
    made.add_argument("--brief", action="store_true", help=alone)
    made.add_argument("--minutes", type=terminal.minutes, metavar="N", help=MINUTES)
    made.add_argument(
        "--samples",
        type=terminal.positive,
        metavar="N",
        help=f"timed calls per row, fewer for slow rows (default: {SAMPLES})",
    )
    made.add_argument(
        "--limit",
        type=terminal.seconds,
        metavar="S",
        help=f"seconds after which a row is killed (default: {LIMIT:.0f}; {QUICK_LIMIT:.0f} in a run of minutes)",
    )
    made.add_argument(
        "--jobs",
        type=terminal.count,
        metavar="N",
        help=f"processes that compile ahead (default: all processors but {QUIET}, at most {JOBS})",
    )
    made.add_argument(
        "--aa", action="store_true", help="time every variant twice; the difference of the two times is the noise"
    )
    made.add_argument(
        "--peers",
        action="store_true",
        help="time other libraries in turns with ours: torch.compile, cuBLAS, cuDNN, and those of perf/peers installed",
    )
    made.add_argument(
        "--rest",
        type=terminal.seconds,
        metavar="S",
        help=f"seconds that a GPU rests before each row (default: {REST_SECONDS})",
    )
    made.add_argument("--overhead", action="store_true", help="measure what a call costs on the host, and nothing else")


def _against(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--against",
        metavar="REV",
        help="did this tree, as it stands, become faster or slower than a git revision, or than a checkout in a folder?"
        " both are timed in turns, and each row that differs gets a verdict",
    )
    made.add_argument("--rounds", type=terminal.positive, metavar="N", help=f"rounds of --against (default: {ROUNDS})")
    made.add_argument("--all", action="store_true", help="with --against: rows whose sources are equal too")


def _reports(made: argparse.ArgumentParser) -> None:
    made.add_argument("--out", default="build/perf", metavar="FOLDER", help="for the reports (default: build/perf)")
    place = f"{user_folder.VARIABLE}, else ~/.local/share/kernelmux"
    kept = f"keep the rows in your folder, where auto reads their times ({place})"
    made.add_argument("--record", action="store_true", help=kept)
    shipped = "with --record: in kernelmux/records, or in the package whose operators they are; all columns"
    made.add_argument("--into-checkout", action="store_true", help=shipped)
    made.add_argument(
        "--export", metavar="FILE", help="write your record of this GPU, for a pull request; runs nothing"
    )
    checked = "is this record whole, possible on its card, and without noise? Runs nothing"
    made.add_argument("--check-export", metavar="FILE", help=checked)
    made.add_argument(
        "--compare", metavar="FILE", help="compare with earlier results (results.json or a record); slower rows fail"
    )
    made.add_argument("--html", metavar="FILE", help="also write the report here, as one page without other files")
    made.add_argument("--render", metavar="FILE", help="make --html of earlier results or a record; runs nothing")
    made.add_argument("--show", nargs="?", const="", metavar="GPU", help="print recorded results; runs nothing")
    made.add_argument(
        "--update", metavar="FILE", help="write the recorded table between its markers in FILE; runs nothing"
    )


def is_quick(args: argparse.Namespace, device: str) -> bool:
    """Whether a run is one of minutes: the default report, or operators on a GPU and nothing else."""
    return not any(getattr(args, name) for name in RIGOROUS) and (device == "cuda" or not args.op)


def limit_of(args: argparse.Namespace, device: str, began: float) -> TimeBudget:
    """The minutes of a run."""
    usual = 0.0
    if is_quick(args, device):
        usual = time_budget.PER_OPERATOR * len(set(args.op)) if args.op else time_budget.DEFAULT[device]
    return TimeBudget(args.minutes or usual, device, began)


def options_of(args: argparse.Namespace, began: float = 0.0) -> PerfOptions:
    """The options of a command line; KernelmuxError for options that are wrong or do not fit together."""
    device = args.device or ("cuda" if args.cluster or torch.cuda.is_available() else "cpu")
    _check_cluster(args)
    if device == "cuda" and not args.cluster and not torch.cuda.is_available():
        raise ArgumentError("--device cuda: torch sees no GPU here")
    if args.record and device != "cuda":
        raise ArgumentError("--record: only times of a real GPU are recorded, and torch sees none here")
    if args.record and cards.lesser():
        raise ArgumentError("--record: the GPU stands for a lesser card, whose times these are not; leave out --card")
    if args.stale and device != "cuda" and not args.list:
        known = "the rows on record are of a GPU, and torch sees none here; --list shows which they are"
        raise ArgumentError(f"--stale: {known}")
    if args.stale and (args.peers or args.impl):
        raise ArgumentError("--stale: the rows on record alone; leave out --peers and --impl")
    if args.plot is not None and not args.sweep and args.show_sweeps is None:
        raise ArgumentError("--plot: expected --sweep or --show-sweeps beside it, whose curves it draws")
    if args.into_checkout and not args.record:
        raise ArgumentError("--into-checkout: expected --record beside it, whose rows it keeps")
    if args.into_checkout and args.brief:
        raise ArgumentError("--into-checkout: a record that ships has all columns; leave out --brief")
    if args.record and args.peers and not args.sweep:
        raise ArgumentError("--record: the times of other libraries are not recorded; leave out --peers")
    if args.impl:
        temporary_backends.check_ops(tuple(args.op))
        beside = {
            "--record": args.record,
            "--overhead": args.overhead,
            "--sweep": args.sweep,
            "--against": args.against,
        }
        if wrong := [name for name, given in beside.items() if given]:
            raise ArgumentError(f"--impl cannot be combined with {wrong[0]}")
    limit, quick = limit_of(args, device, began), is_quick(args, device)
    samples = args.samples or (QUICK_SAMPLES if args.quick else SAMPLES)
    return PerfOptions(
        tuple(args.op),
        tuple(args.backend),
        tuple(args.workload),
        tuple(args.dtype),
        quick=args.quick or args.stale,
        samples=samples,
        device=device,
        out=args.out,
        row_limit=args.limit or (QUICK_LIMIT if quick else LIMIT),
        jobs=_jobs(args, quick),
        brief=quick or args.brief,
        until_known=quick or args.brief,
        until=limit.rows_until,
        peers=args.peers or (quick and device == "cuda" and not args.op),
        rest=args.rest or REST_SECONDS,
        impl=":".join(map(str, temporary_backends.located(args.impl))) if args.impl else "",
        elsewhere=bool(args.cluster) and device == "cuda",
    )


def _check_cluster(args: argparse.Namespace) -> None:
    """ArgumentError for options that do not go with --cluster."""
    if args.cluster and (given := [name for name in HERE_ALONE if getattr(args, name) not in (None, False, "", [])]):
        raise ArgumentError(f"--cluster: runs rows on other machines; leave out --{given[0].replace('_', '-')}")


def _jobs(args: argparse.Namespace, quick: bool) -> int:
    """Processes that compile ahead; none for a few operators in minutes, where starting them takes longer than it saves."""
    if args.jobs is not None:
        return int(args.jobs)
    return 0 if quick and 0 < len(set(args.op)) <= FEW else compiling_processes()


def main(given: Sequence[str] | None = None, began: float | None = None) -> int:
    """Run the command line and return the exit status. began: when the process did, by time.monotonic."""
    start = began or time.monotonic()
    words = sys.argv[1:] if given is None else list(given)
    return terminal.run("perf", lambda: _as_card(parser().parse_args(words), words, start))


def _as_card(args: argparse.Namespace, words: list[str], began: float) -> int:
    gpu = torch.cuda.is_available() and args.device != "cpu"
    with target_device.standing(args.card, "--card", gpu):
        return _main(args, words, began)


def _main(args: argparse.Namespace, words: list[str], began: float) -> int:
    console = Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=120)
    if args.render is not None:
        return command.render(console, Path(args.render), args.html, args.compare)
    if args.show is not None:
        return command.show(console, args.show)
    if args.export is not None or args.check_export is not None:
        return command.contribute(console, args.export, args.check_export)
    if args.show_sweeps is not None:
        return sweeping.show(console, args)
    if args.update is not None:
        return command.update(console, Path(args.update))
    random_sweep.check(args)
    options = options_of(args, began)
    if not args.list and (lack := machine.unknown(options.device)):
        console.print(lack, style="yellow", markup=False, soft_wrap=True)
    if args.against is not None:
        return against.run(console, options, args, _command_line(words))
    if args.rounds or args.all:
        raise ArgumentError("--rounds and --all: expected --against REV beside them")
    if args.overhead:
        return command.overheads(console, options, args, _command_line(words))
    if args.sweep:
        return _sweep(console, options, args, _command_line(_without(words, "--sweep")))
    if args.random:
        return _random(console, options, args, _without(words, "--seed"))
    with tamper_guard.watched(), temporary_backends.joined(options.impl, "".join(options.ops)):
        if options.until_known and not options.ops and not args.list:
            return front.run(console, options, args, _command_line(words), limit_of(args, options.device, began))
        return _timed(console, options, args, words)


def _timed(console: Console, options: PerfOptions, args: argparse.Namespace, words: list[str]) -> int:
    rows = _rows(options, args)
    if args.aa or args.peers:
        rows = noise_floor.twice(rows)
    if args.list:
        return _list(console, rows)
    if args.stale and not rows:
        console.print("nothing of it is stale: the rows on record are of the sources as they are")
        return OK
    _check_some(rows)
    return command.run(console, rows, options, args, _command_line(words))


def _rows(options: PerfOptions, args: argparse.Namespace) -> list[plan.Row]:
    if args.stale:
        return plan.stale(options, args.into_checkout)
    if not options.until_known:
        return plan.rows(options)
    return brief.by_importance(plan.rows(options)) if options.ops else brief.report(options)


def _sweep(console: Console, options: PerfOptions, args: argparse.Namespace, told: str) -> int:
    options = sweeping.options_for(args, options)
    sweeps = sweeping.plans(args, options)
    if args.list:
        return _list(console, sweeping.rows_of(sweeps))
    _check_some(sweeping.rows_of(sweeps))
    return sweeping.run(console, sweeps, options, args, told)


def _random(console: Console, options: PerfOptions, args: argparse.Namespace, words: list[str]) -> int:
    options, seed = random_sweep.options_for(args, options), random_sweep.seed_of(args)
    rows = random_sweep.rows(args, options, seed)
    if args.list:
        return _list(console, rows)
    _check_some(rows)
    return random_sweep.run(console, rows, options, args, f"{_command_line(words)} --seed {seed}")


def _check_some(rows: list[plan.Row]) -> None:
    if not any(not row.problem or row.broken for row in rows):
        raise ArgumentError("nothing to run: no row fits this selection (--list shows what there is)")


def _command_line(words: list[str]) -> str:
    """The command line for the record, without the options that say where the reports went."""
    kept = [w for i, w in enumerate(words) if w not in (*OUTPUTS, "--resume") and not (i and words[i - 1] in OUTPUTS)]
    return shlex.join(["python", "-m", "kernelmux.perf", *kept])


def _without(words: list[str], option: str) -> list[str]:
    """The words without an option and its values."""
    kept, inside = [], False
    for word in words:
        inside = word.partition("=")[0] == option if word.startswith("--") else inside
        kept += [] if inside else [word]
    return kept


def _list(console: Console, rows: list[plan.Row]) -> int:
    for row in rows:
        console.print(row.id + (f"  (not run: {row.problem})" if row.problem else ""), markup=False, soft_wrap=True)
    return OK
