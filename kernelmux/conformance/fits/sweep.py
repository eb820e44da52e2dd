"""`kernelmux conformance --fits [CARD ...]`: asks everything of every card, a process for each, and says what came out.

What was asked before, and has not changed since, is not asked again (`worker.FitsLog`): a run may be stopped at any time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kernelmux.conformance.fits import calls, choices, record, table
from kernelmux.conformance.fits.judge import GOOD, OUTCOMES
from kernelmux.conformance.options import Options
from kernelmux.conformance.report import output_files
from kernelmux.registry import catalog, elsewhere
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.util import cards
from kernelmux.runner.machine import available_cores

OK, FAILED = 0, 1
FOLDER = "fits"  # of the logs, in the folder of --out
WORKER = ["-m", "kernelmux.conformance.fits.worker"]
AT_ONCE = 8  # operators that a process is asked: it keeps what it compiles, a gigabyte for so many
DEATHS = 100  # of processes of a card, after which something else is wrong
Entries = dict[str, Any]  # by "operator/backend"


@dataclass
class FitsSweep:
    """One run. said: called with the card whenever an operator is done."""

    ops: tuple[str, ...]
    backends: tuple[str, ...]
    seed: int
    folder: Path
    said: Callable[[str], None]
    run: str = field(default_factory=lambda: f"{time.time():.6f}-{os.getpid()}")
    processes: set[subprocess.Popen[str]] = field(default_factory=set)
    stopped: bool = False

    def of(self, card: str) -> Entries:
        """The entries of a card. A compiler that ends its process costs one call; RuntimeError for another mishap."""
        found: Entries = {}
        left = list(self.ops)
        for _ in range(DEATHS + len(left) // AT_ONCE):
            for op, entries in self._answers(card, left[:AT_ONCE]):
                found |= {f"{op}/{name}": entry for name, entry in entries.items()}
                left.remove(op)
                self.said(card)
            if not left or self.stopped:
                return found
        raise RuntimeError(f"{card}: {DEATHS} processes and more ended, the last at {left[0]}: {self._last_line(card)}")

    def _answers(self, card: str, ops: Sequence[str]) -> Iterator[tuple[str, Entries]]:
        log = self.folder / f"{card}.jsonl"
        question = {"card": card, "ops": ops, "backends": self.backends, "seed": self.seed, "run": self.run}
        command = [sys.executable, *WORKER]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", cards.VARIABLE: card}
        with (self.folder / f"{card}.stderr").open("w") as errors:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
            )
            self.processes.add(process)
            assert process.stdin and process.stdout
            with process:
                print(json.dumps(question | {"log": str(log)}), file=process.stdin, flush=True)
                for line in process.stdout:
                    yield json.loads(line)
            self.processes.discard(process)
        if process.returncode > 0 and not self.stopped:  # an exception; a compiler ends it by a signal
            raise RuntimeError(f"{card}: the process that asks ended: {self._last_line(card)}")

    def _last_line(self, card: str) -> str:
        lines = (self.folder / f"{card}.stderr").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def stop(self) -> None:
        """End all processes; what they have asked is in the logs."""
        self.stopped = True
        for process in [*self.processes]:
            process.kill()


def command(chosen: Options, named: Sequence[str], workers: str, recorded: bool, console: Console) -> int:
    """Ask, show, and record if that is wanted; exit status 1 if a call does not compile, does not fit, or fails."""
    asked = _cards(named)
    ops = _ops(chosen)
    folder = Path(chosen.out) / FOLDER
    output_files.prepare(folder, ())
    made = _run_cards(asked, ops, chosen, folder, workers, console)
    found = [
        record.entry(card, key, entry, stale=False) for card, entries in made.items() for key, entry in entries.items()
    ]
    console.print(table.totals(found, console.width), markup=False, soft_wrap=True)
    for line in (*table.problems(found, console.width), *table.spills(found, console.width)):
        console.print(line, markup=False, soft_wrap=True)
    if recorded:
        record.merge(made, record.versions())
        console.print(f"\nrecorded in {record.FILE.name}; kernelmux support --cards shows it", soft_wrap=True)
    return FAILED if any(e.count(*(o for o in OUTCOMES if o not in GOOD)) for e in found) else OK


def _cards(named: Sequence[str]) -> list[str]:
    """The cards by name, each once; without any one for each capability."""
    return list(dict.fromkeys(cards.named(name, "--fits").key for name in named)) or list(calls.CARDS)


def _ops(chosen: Options) -> tuple[str, ...]:
    """The operators: of ours, unless some are named."""
    if wrong := [name for name in chosen.backends if name not in choices.ASKED]:
        raise ArgumentError(f"--fits: expected --backend {', '.join(choices.ASKED)}, got {wrong[0]}")
    return chosen.ops or tuple(op for op in catalog.usable() if elsewhere.owner(op) is None)


def _run_cards(
    asked: list[str], ops: tuple[str, ...], chosen: Options, folder: Path, workers: str, console: Console
) -> Mapping[str, Entries]:
    """The entries by card, those of the cards with most calls first."""
    order = sorted(asked, key=lambda card: card not in calls.DRAWN)
    count = available_cores() if workers in ("", "auto") else int(workers)
    made: dict[str, Entries] = {}
    with _progress(console) as bar, ThreadPoolExecutor(min(count, len(order))) as pool:
        tasks = {card: bar.add_task(card, total=len(ops)) for card in order}
        sweep = FitsSweep(ops, chosen.backends, chosen.seed, folder, lambda card: bar.advance(tasks[card]))
        try:
            jobs = {pool.submit(sweep.of, card): card for card in order}
            for job in as_completed(jobs):
                made[jobs[job]] = job.result()
                if not console.is_terminal:
                    console.print(f"{jobs[job]}: {len(ops)} operators", markup=False)
        except BaseException:
            sweep.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {card: made[card] for card in asked}


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)
