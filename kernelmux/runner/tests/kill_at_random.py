"""Kills a program with -9 at random moments, and looks at what is left of its run.

python -m kernelmux.runner.tests.kill_at_random --program toy --times 50 --seed 1

Each time a small run begins in new folders. At a moment drawn over its usual length, mostly from its first row on, its
process group or its driver alone is killed. Then every file in the folders has to be whole, no process may be left 2 s
later, and with --resume the run has to end with the rows of an undisturbed one, each once. Exit status 1 if one
of these does not hold.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernelmux.registry.errors import ArgumentError
from kernelmux.runner import results

TOP = Path(__file__).resolve().parents[3]
MARK = "KERNELMUX_KILLED_RUN"  # by which the processes of a run are found
EARLY = 0.25  # the share of kills before the first row
SURVIVES = 2.0  # seconds in which all processes of a run that was killed have to end
AGAIN = "again:"  # what the names of rows begin with that are timed again
VOLATILE = {"pid", "seconds", "date", "time", "when", "host"}  # names in a row whose values differ from run to run
NUMBER = re.compile(r"\d+(\.\d+)?(e-?\d+)?")


@dataclass(frozen=True)
class Program:
    """A small run. words: its command line; {out} stands for a new folder, {top} for the checkout. resume: what goes on
    with it. rows: where its rows are, below `out`. timed: whether they are of times, so that only their names are
    compared, and none of what is timed again where times are not clear. keeps: whether those of all runs stay in the
    file, each behind its head.
    """

    words: Sequence[str]
    resume: Sequence[str] = ("--resume",)
    rows: str = results.NAME
    timed: bool = False
    keeps: bool = False


SOFTMAX = "--op softmax --backend torch_ref --device cpu"
PROGRAMS = {
    "toy": Program("kernelmux.runner.tests.toy_program --out {out} --items 60 --seconds 0.01 -n 2".split()),
    "conformance": Program(
        f"kernelmux.conformance {SOFTMAX} --tier smoke --check shapes layout exact state scalars -n 2 --out {{out}}".split()
    ),
    "perf": Program(f"kernelmux.perf {SOFTMAX} --quick --out {{out}}".split(), timed=True),
    "against": Program(
        (
            f"kernelmux.perf --against {{top}} --all {SOFTMAX} --dtype fp32 --workload x=64x256 x=32x128 --rounds 8 "
            "--out {out}"
        ).split(),
        timed=True,
    ),
    "tune": Program(
        [
            *"kernelmux.tune --op matmul --backend triton/persistent --dtype bf16 --most 6 --jobs 2 --dry-run".split(),
            *("--workload", "a=64x64 b=64x64", "--log", "{out}"),
        ],
        resume=[],
        timed=True,
        keeps=True,
    ),
}


@dataclass
class Found:
    """What 50 kills came to. within: how many came before the end of the run; rows: that it had then."""

    times: int = 0
    within: int = 0
    rows: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def __str__(self):
        shown = f"{min(self.rows, default=0)} to {max(self.rows, default=0)} rows"
        return f"killed {self.times} times, {self.within} within the run with {shown}: {len(self.faults)} faults"


class Trial:
    """One run in new folders."""

    def __init__(self, program, folder):
        self.program, self.out, self.home, self.mark = program, folder / "out", folder / "home", uuid.uuid4().hex
        self.text = folder / "text"

    def start(self, *more):
        words = [word.format(out=self.out, top=TOP) for word in self.program.words]
        own = {MARK: self.mark, "KERNELMUX_HOME": str(self.home), "PYTHONPATH": str(TOP)}
        with self.text.open("ab") as text:
            return subprocess.Popen(
                [sys.executable, "-m", *words, *more],
                stdin=subprocess.DEVNULL,
                stdout=text,
                stderr=text,
                env={**os.environ, **own},
                start_new_session=True,
            )

    def processes(self):
        """All that have the mark in their environment and have not ended."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                state = (path / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
                if state not in "ZX" and self.mark.encode() in (path / "environ").read_bytes():
                    found.append(int(path.name))
            except OSError:  # it has ended meanwhile
                continue
        return found

    def has_rows(self):
        path = self.out / self.program.rows
        return path.exists() and b'\n{"item"' in path.read_bytes()

    def rows(self):
        """By item, without what differs from run to run; how often each stands there, at most for each run of the file."""
        told: dict[str, object] = {}
        times: Counter[str] = Counter()
        own: Counter[str] = Counter()
        for line in results.read(self.out / self.program.rows).rows:
            if line.get("kind") == "rows" and self.program.keeps:
                own = Counter()
            if (name := line.get("item")) and not (self.program.timed and name.startswith(AGAIN)):
                told[name] = None if self.program.timed else same(line["row"])
                own[name] += 1
                times[name] = max(times[name], own[name])
        return told, times

    def damaged(self):
        """The files that are not whole."""
        wrong = []
        for path in sorted(p for top in (self.out, self.home) for p in top.rglob("*") if p.is_file()):
            text = path.read_bytes()
            if path.suffix == ".json":
                wrong += [] if parses(text) else [f"{path}: no whole JSON"]
            elif path.suffix == ".jsonl":
                whole = text[: text.rfind(b"\n") + 1]
                wrong += [f"{path}: line {n}" for n, line in enumerate(whole.splitlines(), 1) if not parses(line)]
                wrong += [f"{path}: torn" for _ in range(len(text) > len(whole) and path.name != self.program.rows)]
        return wrong


def parses(text):
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def same(value):
    """A row without times and other numbers that differ from run to run."""
    if isinstance(value, dict):
        return {name: same(told) for name, told in value.items() if name not in VOLATILE}
    if isinstance(value, list):
        return [same(told) for told in value]
    if isinstance(value, str):
        return NUMBER.sub("#", value)
    return "#" if isinstance(value, float) else value


def shown(row):
    text = json.dumps(row)
    return text if len(text) < 300 else f"{text[:300]}..."


def undisturbed(program, folder):
    """The rows of an undisturbed run, the seconds until its first and until its end, and its exit status."""
    trial, began, first = Trial(program, folder), time.monotonic(), 0.0
    run = trial.start()
    while (status := run.poll()) is None:
        time.sleep(0.01)
        first = first or (time.monotonic() - began if trial.has_rows() else 0.0)
    if status not in (0, 1):
        raise SystemExit(f"an undisturbed run ended with status {status}:\n{trial.text.read_text(encoding='utf-8')}")
    rows, times = trial.rows()
    if max(times.values(), default=0) != 1:
        raise SystemExit(f"expected each row once in an undisturbed run, got {times}")
    return rows, first, time.monotonic() - began, status


def kill(program, folder, after, group, wanted, status):
    """Kill one run; (whether it had not ended, its rows then, what is wrong)."""
    trial, wrong = Trial(program, folder), []
    run = trial.start()
    try:
        run.wait(after)
    except subprocess.TimeoutExpired:
        pass
    within = run.poll() is None
    if within:
        (os.killpg if group else os.kill)(run.pid, signal.SIGKILL)
        run.wait()
    end = time.monotonic() + SURVIVES
    while (left := trial.processes()) and time.monotonic() < end:
        time.sleep(0.02)
    wrong += [f"{len(left)} processes are left"] if left else []
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    wrong += trial.damaged()
    try:
        before, _ = trial.rows()
        more = program.resume
    except ArgumentError:  # it had not begun, so that there is nothing to go on with
        before, more = {}, ()
    ended = trial.start(*more).wait()
    wrong += [] if ended == status else [f"with {more} it ended with status {ended}, not {status}"]
    try:
        rows, times = trial.rows()
    except ArgumentError as error:
        return within, len(before), [*wrong, str(error)]
    wrong += trial.damaged()
    wrong += [f"missing: {name}" for name in wanted.keys() - rows.keys()]
    wrong += [f"too much: {name}" for name in rows.keys() - wanted.keys()]
    wrong += [f"{count} times: {name}" for name, count in times.items() if count > 1]
    wrong += [
        f"differs: {n}: {shown(rows[n])}, not {shown(wanted[n])}"
        for n in rows.keys() & wanted.keys()
        if rows[n] != wanted[n]
    ]
    wrong += [f"lost: {name}" for name in before.keys() - rows.keys()]
    wrong += ["...:\n" + trial.text.read_text(encoding="utf-8")[-2000:]] if wrong else []
    return within, len(before), wrong


def kills(name, times, seed, tell=print):
    """Kill a program so many times."""
    program, chance, found = PROGRAMS[name], random.Random(seed), Found()
    with tempfile.TemporaryDirectory(prefix="kernelmux-killed-") as top:
        wanted, first, end, status = undisturbed(program, folder_in(top, "undisturbed"))
        tell(f"{name}: {len(wanted)} rows in {end:.1f} s, the first after {first:.1f} s")
        for number in range(times):
            after = chance.uniform(0, first) if chance.random() < EARLY else chance.uniform(first, end)
            group = chance.random() < 0.5
            within, rows, wrong = kill(program, folder := folder_in(top, str(number)), after, group, wanted, status)
            found.times, found.within = found.times + 1, found.within + within
            found.rows += [rows] if within else []
            told = f"{number}: {'group' if group else 'driver'} after {after:.2f} s, {rows} rows"
            tell(told + ("" if within else ", it had ended") + "".join(f"\n  {fault}" for fault in wrong))
            found.faults += [f"{told}: {fault}" for fault in wrong]
            shutil.rmtree(folder, ignore_errors=True)
    return found


def folder_in(top, name):
    made = Path(top) / name
    made.mkdir()
    return made


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--program", choices=[*PROGRAMS, "all"], default="toy")
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    names = [*PROGRAMS] if options.program == "all" else [options.program]
    found = {name: kills(name, options.times, options.seed) for name in names}
    for name, told in found.items():
        print(f"{name}: {told}")
    return int(any(told.faults for told in found.values()))


if __name__ == "__main__":
    sys.exit(main())
