"""`kernelmux judge --format` and `--reference`: solutions of other projects' tasks, from their files to a table."""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from fnmatch import fnmatchcase
from multiprocessing import active_children, get_context
from pathlib import Path
from signal import SIG_IGN, SIGINT, signal

import torch
from rich.console import Console

from kernelmux.candidate import sandbox
from kernelmux.candidate.limits import GIB, Limits
from kernelmux.candidate.pool import WarmPool
from kernelmux.judge import formats
from kernelmux.judge.formats import report
from kernelmux.judge.formats.judging import OUT, PASSED, TaskJudge, TaskVerdict
from kernelmux.judge.formats.projects import python_function
from kernelmux.judge.formats.reference.process import ReferenceProcess, TaskLimits
from kernelmux.judge.formats.task import FormatError, Solution, Task
from kernelmux.registry.cli import terminal

LIMIT = 16 << 20  # bytes of a call's tensors, by default
SECONDS = 900.0  # for the reference of a trial, which runs some 40 times: a large network takes minutes
WIDTH = 160

Work = tuple[Task, Solution | None]


@dataclass(frozen=True)
class JudgeSettings:
    """What a judge of tasks is made with, in this process or another. path: what references see."""

    path: Path
    size: int
    seed: int
    device: str
    allow: tuple[str, ...]
    limits: Limits

    def opened(self, several: bool = True) -> TaskJudge:
        """The judge; several: whether a process is to wait for the next solution."""
        reference = ReferenceProcess(self.path, TaskLimits(self.size, SECONDS))
        return TaskJudge(
            reference, WarmPool(int(several), self.limits), self.seed, self.device, self.allow, self.limits
        )


def command(args: argparse.Namespace) -> int:
    """Judge what the options name; the exit status: 0 if every task in scope has a solution, and each passed."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    path, work = _paired(args) if args.reference else _listed(args)
    memory = int(args.memory * GIB)
    settings = JudgeSettings(
        path,
        args.limit or LIMIT,
        secrets.randbits(62) if args.seed is None else args.seed,
        args.device or ("cuda" if torch.cuda.is_available() else "cpu"),
        tuple(args.allow),
        Limits(call=args.seconds, memory=memory),
    )
    begun, found, ended = time.monotonic(), list[TaskVerdict](), True
    try:
        for verdict in judged(work, settings, args.n or 1):
            found.append(verdict)
            _progress(found, len(work))
    except KeyboardInterrupt:
        ended = False
    order = {(task.name, str(solution.path) if solution else ""): i for i, (task, solution) in enumerate(work)}
    found.sort(key=lambda one: order[one.task, one.solution])
    console.print(report.verdicts(found, args.solutions or path))
    for limit in sandbox.not_held():
        console.print(f"not held: {limit}", markup=False, soft_wrap=True)
    console.print(f"{report.verdict_counts(found)}; seed {settings.seed}", markup=False, soft_wrap=True)
    if not ended:
        console.print(f"interrupted: {len(work) - len(found)} of {len(work)} were not judged")
    if args.json:
        report.write_verdicts(Path(args.json), found, settings.seed, settings.allow, settings.size)
    if args.junitxml:
        report.write_junit(Path(args.junitxml), found, time.monotonic() - begun)
    if not ended:
        return terminal.INTERRUPTED
    asked = [one.status for one in found if one.status != OUT]
    return terminal.OK if asked and set(asked) == {PASSED} else terminal.FAILED


def _progress(found: Sequence[TaskVerdict], count: int) -> None:
    """How far it is, on stderr: one line that changes in a terminal, else a line for each verdict."""
    if sys.stderr.isatty():
        print(f"\r{len(found)} of {count}", end="\n" if len(found) == count else "", file=sys.stderr, flush=True)
    else:
        last = found[-1]
        text = f"[{len(found)}/{count}] {last.status}: {last.task} {Path(last.solution).name}"
        print(text.rstrip(), file=sys.stderr, flush=True)


def _paired(args: argparse.Namespace) -> tuple[Path, list[Work]]:
    """A function with a reference beside it."""
    if args.format not in (None, python_function.NAME):
        raise FormatError(f"--reference: expected --format {python_function.NAME} or none, got {args.format}")
    task, solution = python_function.pair(args.candidate, args.reference, args.inputs)
    return task.source, [(task, solution)]


def _listed(args: argparse.Namespace) -> tuple[Path, list[Work]]:
    """The tasks of a folder, each with its solutions, or None for one that has none."""
    if not args.candidate:
        raise FormatError(f"expected a folder with tasks of {args.format}")
    folder = Path(args.candidate).expanduser().absolute()
    found = formats.find(args.format, folder)
    tasks = [task for task in found if fnmatchcase(f"/{task.name}", f"*/{args.only}")]  # names begin below the folder
    if not tasks:
        some = f"; it has {len(found)}, such as {found[0].name}" if found else ""
        raise FormatError(f"{folder}: no task of {args.format} by the name of {args.only}{some}")
    given = formats.solutions(tasks, Path(args.solutions).expanduser().absolute() if args.solutions else folder)
    return folder, [(task, solution) for task in tasks for solution in (given[task.name] or (None,))]


def judged(work: Sequence[Work], settings: JudgeSettings, processes: int) -> Iterator[TaskVerdict]:
    """The verdicts, as they come; with several processes each has a judge of its own."""
    if processes == 1 or len(work) == 1:
        judge = settings.opened(len(work) > 1)
        try:
            for task, solution in work:
                yield judge.judge(task, solution)
        finally:
            _close(judge)
        return
    pool = ProcessPoolExecutor(min(processes, len(work)), get_context("spawn"), _begin, (settings,))
    try:
        for future in as_completed([pool.submit(_one, one) for one in work]):
            yield future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in active_children():
            process.terminate()  # what it has started goes with it


_judges: list[TaskJudge] = []  # of a process that judges beside others


def _begin(settings: JudgeSettings) -> None:
    signal(SIGINT, SIG_IGN)  # the command ends them
    torch.set_num_threads(1)
    _judges.append(settings.opened())


def _one(work: Work) -> TaskVerdict:
    return _judges[0].judge(*work)


def _close(judge: TaskJudge) -> None:
    judge.reference.close()
    judge.pool.close()
