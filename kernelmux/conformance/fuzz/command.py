"""`--fuzz N`: N calls in worker processes that may crash or hang, what became of them, and how to see a bad one again."""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import resource
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from kernelmux.candidate import packages
from kernelmux.conformance.fuzz import calls, judge
from kernelmux.conformance.fuzz.judge import UNTYPED, FuzzVerdict
from kernelmux.conformance.options import Options
from kernelmux.conformance.report.progress import PAUSE, duration
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.errors import KernelmuxError
from kernelmux.runner.machine import available_cores

BASELINE = "torch_ref"
EMULATED = 20  # one call in so many is made for a backend whose kernels are emulated
PATIENCE = 120.0  # seconds without a call that ends: the process hangs
IMPORTS = 120.0  # seconds until the first call, beside that
ROOM = 4 * 2**30  # bytes that a process may ask for beside what torch takes: beyond it torch says that there are none
PART = 50  # calls between two reports of a process
SHOWN = 10  # causes that are printed
METHOD = "spawn"  # how a process begins: with nothing of this one
PARALLEL_FROM = 1000  # fewer calls are done before a second process has imported torch
OK, FAILED = 0, 1


@dataclass(frozen=True)
class Bad:
    """A call that neither returned what the spec says nor was refused with a type. draft: the smallest like it."""

    seed: int
    index: int
    verdict: FuzzVerdict
    draft: str


@dataclass
class FuzzOutcome:
    """What became of the calls so far: how many by kind, and the bad ones."""

    counts: Counter[str] = field(default_factory=Counter)
    bad: list[Bad] = field(default_factory=list)


def drafted(seed: int, index: int, ops: Sequence[str]) -> tuple[calls.Draft, tuple[str, ...]]:
    """The call of that number, and the backends that it was made for; the same in every run over the same operators."""
    rng = random.Random(f"{seed}:{index}")
    able: tuple[str, ...] = (BASELINE,)
    emulated = [name for name in registered.backends() if registered.emulates(name, torch.device("cpu"))]
    emulated = [name for name in emulated if not registered.unavailable(name, torch.device("cpu"))]
    if rng.randrange(EMULATED) == 0 and emulated:
        able = (rng.choice(sorted(emulated)),)
    with warnings.catch_warnings(action="ignore"):  # of torch's prototypes
        return calls.draft(calls.Draw(rng.randint, wild=True), tuple(ops), able), able


def one(seed: int, index: int, ops: Sequence[str]) -> tuple[FuzzVerdict, calls.Draft]:
    """Make the call of that number; of a bad one the smallest that is bad in the same way."""
    draft, able = drafted(seed, index, ops)
    verdict = judge.judge(draft, able)
    return verdict, judge.smallest(draft, able, verdict) if verdict.bad else draft


# --- worker processes ---------------------------------------------------------------------------------------------


def _work(
    pipe: Connection, place: Any, seed: int, indices: range, ops: Sequence[str], in_process: Sequence[str]
) -> None:
    """Make these calls; place: of the call that is being made. Those of other packages go on apart, on the CPU."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)  # torch logs what it then raises
    _limit_memory()
    found = FuzzOutcome()
    with packages.apart("cpu", in_process):
        for count, index in enumerate(indices, 1):
            place.value = index
            verdict, draft = one(seed, index, ops)
            found.counts[verdict.kind] += 1
            if verdict.bad:
                found.bad.append(Bad(seed, index, verdict, repr(draft)))
            if count % PART == 0 or index == indices[-1]:
                pipe.send((found.counts, found.bad))
                found = FuzzOutcome()
    pipe.close()
    os._exit(0)  # Python would let Triton print what it did not free


def _limit_memory() -> None:
    """A call that asks for more than there is gets an error, and no machine without memory."""
    with suppress(OSError, ValueError):
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, hard))


class FuzzWorker:
    """A process that makes every step-th call; a new one goes on behind a call that ended it."""

    def __init__(self, seed: int, indices: range, ops: Sequence[str], in_process: Sequence[str]) -> None:
        self.seed, self.ops, self.indices, self.in_process = seed, ops, indices, in_process
        self._context: Any = multiprocessing.get_context(METHOD)
        self.start()

    def start(self) -> None:
        self.place = self._context.Value("q", -1, lock=False)
        self.pipe, theirs = self._context.Pipe(duplex=False)
        given = (theirs, self.place, self.seed, self.indices, self.ops, self.in_process)
        self.process = self._context.Process(target=_work, args=given, daemon=True)
        self.process.start()
        theirs.close()
        self.seen, self.since = -1, time.monotonic() + IMPORTS
        self.reported = 0

    def read(self, found: FuzzOutcome) -> bool:
        """Take a report; whether the process goes on."""
        try:
            counts, bad = self.pipe.recv()
        except (EOFError, OSError):
            return False
        found.counts += counts
        found.bad += bad
        self.reported += sum(counts.values())
        return True

    def hangs(self) -> bool:
        now = time.monotonic()
        if self.place.value != self.seen:
            self.seen, self.since = self.place.value, now
        return now - self.since > PATIENCE

    def lost(self, found: FuzzOutcome, reason: str) -> bool:
        """Note the call that ended the process, and go on behind it; whether there is more to do."""
        index = self.place.value
        self.process.kill()
        self.process.join()
        if index < 0:
            raise KernelmuxError(f"--fuzz: a process did not start: {reason}")
        at = self.indices.index(index)
        draft = repr(drafted(self.seed, index, self.ops)[0])
        found.counts[UNTYPED] += 1
        found.counts["not reported, as their process was lost"] += at - self.reported
        found.bad.append(Bad(self.seed, index, FuzzVerdict(UNTYPED, reason, reason), draft))
        self.indices = self.indices[at + 1 :]
        if self.indices:
            self.start()
        return bool(self.indices)


def _run(
    seed: int, count: int, ops: Sequence[str], workers: int, in_process: Sequence[str] = ()
) -> Iterator[FuzzOutcome]:
    """Make the calls, and say every now and then what became of all so far."""
    found = FuzzOutcome()
    turns = [range(first, count, workers) for first in range(min(workers, count))]
    running = [FuzzWorker(seed, turn, ops, in_process) for turn in turns]
    try:
        while running:
            ready = wait([w.pipe for w in running], timeout=1.0)
            for worker in list(running):
                going = worker.read(found) if worker.pipe in ready else True
                if going and worker.hangs():
                    going = worker.lost(found, f"hangs: not back after {PATIENCE:.0f} s")
                elif not going:
                    worker.process.join()
                    code = worker.process.exitcode or 0
                    going = bool(code) and worker.lost(found, _died(code))
                if not going:
                    running.remove(worker)
            yield found
    finally:
        for worker in running:
            worker.process.kill()


def _died(code: int) -> str:
    return f"the process ended by {signal.Signals(-code).name}" if code < 0 else f"the process ended with status {code}"


# --- the command ----------------------------------------------------------------------------------------------------


def command(chosen: Options, count: int, asked: str, only: int | None, console: Console) -> int:
    """Run `--fuzz`, or the one call of `--fuzz-only`; 1 if a call was bad."""
    ops = chosen.ops or catalog.usable()
    seeds = chosen.seeds or (chosen.seed,)
    if only is not None:
        return _again(chosen, seeds[0], only, ops, console)
    workers = int(asked) if asked.isdigit() else available_cores() if count >= PARALLEL_FROM else 1
    start, total = time.monotonic(), FuzzOutcome()
    for seed in seeds:
        found = _watched(seed, count, ops, workers, console, chosen.in_process)
        total.counts += found.counts
        total.bad += found.bad
    _show(chosen, total, console)
    told = ", ".join(map(str, seeds))
    took = duration(time.monotonic() - start)
    bad = len(total.bad)
    line = f"{total.counts.total()} calls of {len(ops)} operators, seed {told}, in {took}: {bad} untyped"
    console.print(line, style="bold red" if bad else "bold", highlight=False)
    return FAILED if bad else OK


def _watched(
    seed: int, count: int, ops: Sequence[str], workers: int, console: Console, in_process: Sequence[str]
) -> FuzzOutcome:
    """The calls of a seed, with a bar in a terminal and now and then a line elsewhere."""
    found, told = FuzzOutcome(), time.monotonic()
    bar = Progress(
        TextColumn(f"fuzz, seed {seed}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("[red]{task.fields[bad]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task("calls", total=count, bad="")
        for found in _run(seed, count, ops, workers, in_process):
            done = found.counts.total()
            bar.update(task, completed=done, bad=f"{len(found.bad)} untyped" if found.bad else "")
            if not console.is_terminal and time.monotonic() - told >= PAUSE:
                told = time.monotonic()
                console.print(f"[{done}/{count}] seed {seed}, {len(found.bad)} untyped", markup=False, highlight=False)
    return found


def _show(chosen: Options, found: FuzzOutcome, console: Console) -> None:
    """What became of the calls, and of the bad ones one for each cause."""
    for kind, number in found.counts.most_common():
        console.print(f"{number:>9}  {kind}", highlight=False)
    causes: dict[tuple[str, str], list[Bad]] = {}
    for bad in sorted(found.bad, key=lambda b: (b.seed, b.index)):
        causes.setdefault(bad.verdict.cause, []).append(bad)
    for same in list(causes.values())[:SHOWN]:
        _tell(chosen, same[0], len(same), console)
    if len(causes) > SHOWN:
        console.print(f"and {len(causes) - SHOWN} other causes", style="red", highlight=False)


def _tell(chosen: Options, bad: Bad, count: int, console: Console) -> None:
    own = f" --op {' '.join(chosen.ops)}" if chosen.ops else ""
    lines = [
        f"{bad.verdict.kind}, {count} call{'s' * (count > 1)}: {bad.verdict.text[:1000]}",
        f"  {bad.verdict.place}",
        f"  {bad.draft}",
        f"  reproduce: {chosen.program}{own} --fuzz-only {bad.index} --seed {bad.seed}",
    ]
    console.print("\n".join(lines) + "\n", style="red", markup=False, highlight=False, soft_wrap=True)


def _again(chosen: Options, seed: int, index: int, ops: Sequence[str], console: Console) -> int:
    """The call of one number, in this process."""
    console.print(repr(drafted(seed, index, ops)[0]), markup=False, highlight=False, soft_wrap=True)
    sys.stdout.flush()  # it may end the process
    verdict, draft = one(seed, index, ops)
    if verdict.bad:
        _tell(chosen, Bad(seed, index, verdict, repr(draft)), 1, console)
        return FAILED
    console.print(f"{verdict.kind}: {verdict.text}" if verdict.text else verdict.kind, markup=False, soft_wrap=True)
    return OK
