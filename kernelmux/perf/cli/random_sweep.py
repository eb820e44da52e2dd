"""What `--random` does: time random shapes of each family beside other libraries, and say our share of the best one."""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console

from kernelmux.perf import peers
from kernelmux.perf.cli import command
from kernelmux.perf.planning import plan
from kernelmux.perf.planning.plan import BASELINE, PLAIN, Row
from kernelmux.perf.report import shares, tables
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.perf.session.run import WorkerReports
from kernelmux.perf.sweeps import random_shapes
from kernelmux.perf.sweeps.plan import picked
from kernelmux.perf.sweeps.random_texts import FAMILIES, FAMILY_OF
from kernelmux.perf.timing import noise_floor
from kernelmux.registry import catalog, dtypes
from kernelmux.registry.cli import terminal
from kernelmux.registry.errors import ArgumentError, unknown

SEEDS = 1_000_000  # that are drawn where none is given
ONLY = ("seed", "family", "largest")  # options that go with --random alone
ELSEWHERE = tuple("workload every_row quick stale impl sweep against overhead record into_checkout".split())


def add(made: argparse.ArgumentParser) -> None:
    """The options of a random sweep."""
    told = (
        "time N random shapes of each family beside other libraries; reports the share of the best one, and the worst"
    )
    made.add_argument("--random", type=terminal.positive, metavar="N", help=told)
    again = "with --random: the same shapes again (default: a new one, which the report names)"
    made.add_argument("--seed", type=terminal.count, metavar="S", help=again)
    names = f"with --random: families of operators (default: all): {', '.join(FAMILIES)}"
    made.add_argument("--family", nargs="+", action="extend", default=[], metavar="F", help=names)
    most = "with --random: most bytes of the inputs and outputs of a call (default: 2e9, on a CPU 16e6)"
    made.add_argument("--largest", type=_bytes, metavar="BYTES", help=most)


def _bytes(text: str) -> int:
    """A number of bytes such as 64000000 or 2e9, for argparse."""
    try:
        found = int(float(text))
    except (ValueError, OverflowError):
        found = 0
    if found < 1:
        raise argparse.ArgumentTypeError(f"expected a number of bytes such as 2e9, got {text!r}")
    return found


def check(args: argparse.Namespace) -> None:
    """ArgumentError for options that do not go with --random, or without it."""
    if args.random is None:
        if given := [name for name in ONLY if getattr(args, name) not in (None, [])]:
            raise ArgumentError(f"--{given[0]}: expected --random N beside it, whose shapes it is about")
        return
    if given := [name.replace("_", "-") for name in ELSEWHERE if getattr(args, name)]:
        raise ArgumentError(f"--random: it draws the workloads itself; leave out --{', --'.join(given)}")
    if args.resume and args.seed is None:
        raise ArgumentError("--resume: expected the --seed of the run beside --random, which its report names")


def seed_of(args: argparse.Namespace) -> int:
    """The seed of a run: the one that is given, else a new one."""
    return random.SystemRandom().randrange(SEEDS) if args.seed is None else int(args.seed)


def options_for(args: argparse.Namespace, options: PerfOptions) -> PerfOptions:
    """Device times alone, until they are known, beside all peers."""
    return replace(options, brief=True, until_known=not args.samples, peers=options.peers or options.device == "cuda")


def operators(asked: Sequence[str], families: Sequence[str]) -> dict[str, list[str]]:
    """The operators of each family that a run is about; ArgumentError for a family or an operator that it has not."""
    for name in families:
        if name not in FAMILIES:
            raise ArgumentError(str(unknown("family", name, FAMILIES, "--family")))
    for op in asked:
        catalog.spec(op)
        if FAMILY_OF.get(op) not in (families or FAMILIES):
            where = f"one of --family {' '.join(families)}" if families else f"one of {', '.join(FAMILY_OF)}"
            raise ArgumentError(f"--op {op}: expected {where}, of which --random knows shapes")
    usable = set(asked or catalog.usable())
    found = {name: [op for op in FAMILIES[name] if op in usable] for name in families or FAMILIES}
    return {name: ops for name, ops in found.items() if ops}


def rows(args: argparse.Namespace, options: PerfOptions, seed: int) -> list[Row]:
    """N shapes of each family, its operators in turns, group by group."""
    if options.peers:
        peers.join()
    plan.check_names(options)
    allowed = [dtypes.parse(name) for name in options.dtypes if "all" not in options.dtypes]
    largest = args.largest or random_shapes.LARGEST[options.device]
    families = [
        [op for op in ops if not allowed or set(allowed) & set(catalog.spec(op).dtypes)]
        for ops in operators(options.ops, args.family).values()
    ]
    if not any(families):
        where = f"--family {' '.join(args.family)}" if args.family else "any family"
        raise ArgumentError(f"--random: no operator of {where} has --dtype {' '.join(options.dtypes)}")
    made: list[Row] = []
    for having in families:
        random.Random(seed).shuffle(having)
        for place, op in enumerate(having[: args.random]):
            count = len(range(place, args.random, len(having)))
            spec = catalog.spec(op)
            for case, dtype in random_shapes.draw(spec, count, seed, allowed, largest):
                made += _contestants(list(plan.of_group(spec, case, dtype, options)), options)
    return noise_floor.twice(made) if options.peers else made


def _contestants(group: list[Row], options: PerfOptions) -> list[Row]:
    """What is compared on a shape: torch as its users write it, of each backend what a call runs, and every peer."""
    written = [r for r in group if r.backend == BASELINE and (r.variant == PLAIN or r.label in options.backends)]
    return [*written, *picked([r for r in group if r.backend != BASELINE], options, every_peer=True)]


def run(console: Console, found: list[Row], options: PerfOptions, args: argparse.Namespace, told: str) -> int:
    """Time the rows, show and write them with the shares, and return the exit status."""

    def one(outcome: WorkerReports, given: argparse.Namespace) -> int:
        measured = command.results_of(outcome, told, options)
        measured = replace(measured, shares=shares.shares(measured.rows, FAMILY_OF))
        command.introduce(console, measured, options)
        tables.show(console, measured.rows, options.device == "cuda")
        tables.random_shares(console, measured.shares)
        console.print(told, style="dim", markup=False, soft_wrap=True)
        earlier = command.write(console, measured, given)
        return command.conclude(console, measured, earlier, args.aa, outcome.interrupted)

    return command.reported(console, found, options, args, True, one)
