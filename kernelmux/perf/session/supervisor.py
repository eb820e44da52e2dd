"""Runs a plan in worker processes: a kernel that hangs or kills its GPU context costs one row and not the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelmux.perf import peers
from kernelmux.perf.planning import time_budget
from kernelmux.perf.planning.plan import Row
from kernelmux.perf.rows import output_files
from kernelmux.perf.rows.codec import decode, encode
from kernelmux.perf.rows.machine import MeasuringMachine
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.perf.rows.roofline import Ceilings
from kernelmux.perf.rows.row_result import FAILED, LATE, SKIPPED, RowResult
from kernelmux.perf.session import precompile
from kernelmux.perf.session.harness import EVENTS, PLAN, TIME_UP
from kernelmux.perf.session.pytest_plugin import FOLDER

POLL = 0.1  # seconds
START_LIMIT = 300.0  # seconds until the first row: imports, CUDA context, ceilings
# torch.compile would start as many processes as there are cores, in each of ours and beside what is timed.
ONE_COMPILER = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
CONFIGURATION = "[pytest]\nfilterwarnings =\n    ignore\n"  # instead of one that lies above the current folder

Event = tuple[str, Any]  # its name, and its JSON
Watch = Callable[[str | RowResult], None]  # sees what begins, by name, and the result of each row that ended


@dataclass
class WorkerReports:
    """What the workers reported; errors: why rows could not be run at all.

    seconds: of the parts of the run. compiled: of each row that was compiled ahead, by its id.
    """

    rows: list[RowResult] = field(default_factory=list)
    machine: MeasuringMachine = field(default_factory=MeasuringMachine)
    ceilings: Ceilings | None = None
    errors: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    compiled: dict[str, float] = field(default_factory=dict)
    interrupted: bool = False


def run(rows: list[Row], options: PerfOptions, watch: Watch) -> WorkerReports:
    """Run the rows, starting a new worker after each one that was lost.

    What the workers need lies in a folder of their own; `options.out` gets pytest-benchmark's file and the worker's log.
    Ctrl-C ends the run with the rows it has.
    """
    outcome = WorkerReports()
    for row in rows:
        if row.problem:
            outcome.rows.append(row.not_timed("failed" if row.broken else "skipped", row.problem))
    with tempfile.TemporaryDirectory(prefix="kernelmux-perf-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        (folder / "pytest.ini").write_text(CONFIGURATION)
        try:
            _workers([row for row in rows if not row.problem], options, folder, outcome, watch)
        except KeyboardInterrupt:
            outcome.interrupted = True
        _take_out(folder, Path(options.out))
    return outcome


def _workers(remaining: list[Row], options: PerfOptions, folder: Path, outcome: WorkerReports, watch: Watch) -> None:
    """One worker after another, until every row has run or a worker ends before its first."""
    if options.device == "cuda":
        remaining = _compiled(remaining, options, folder, outcome, watch)
    number, began = 0, time.monotonic()
    while remaining:
        if options.until and time.time() > options.until:
            for row in remaining:
                _end(row.not_timed(LATE, TIME_UP), outcome, watch)
            break
        before, report = len(remaining), folder / f"benchmark-{number}.json"
        remaining, number = _one_worker(remaining, options, folder, report, outcome, watch), number + 1
        if len(remaining) == before:
            outcome.errors.append(_complaint(folder))
            break
    outcome.seconds["timing, with the start of its process"] = time.monotonic() - began


def _compiled(rows: list[Row], options: PerfOptions, folder: Path, outcome: WorkerReports, watch: Watch) -> list[Row]:
    """Compile ahead; the rows that are left to time. Those whose compiler had to be stopped are not."""
    watch(f"compiling ahead in {options.jobs} processes")
    _save(rows, options, folder)
    began, limit = time.monotonic(), time_budget.compiling_seconds(options.until, precompile.LIMIT)
    found = precompile.compile_all(folder, rows, options.jobs, environment() | ONE_COMPILER, limit)
    outcome.seconds["compiling ahead"] = time.monotonic() - began
    outcome.compiled = found.seconds
    late = set(found.late) if options.until else set()
    for row in rows:
        if row.id in late:
            told = f"compiling it ahead took more than the {limit:.0f} s that there were for all"
            _end(row.not_timed(LATE, told), outcome, watch)
    return [row for row in rows if row.id not in late]


def _take_out(folder: Path, out: Path) -> None:
    """What stays of the workers' folder: the merged file of pytest-benchmark, and the log of the last worker."""
    if merged := _merged(sorted(folder.glob("benchmark-*.json"))):
        output_files.write(out / "benchmark.json", merged)
    if (folder / "worker.log").exists():
        output_files.write(out / "worker.log", (folder / "worker.log").read_bytes())


def _save(rows: list[Row], options: PerfOptions, folder: Path) -> None:
    (folder / PLAN).write_text(json.dumps({"options": options.as_dict(), "rows": [encode(row) for row in rows]}))


def _complaint(folder: Path) -> str:
    log = (folder / "worker.log").read_text(errors="replace").strip().splitlines()
    return "the worker process ended before its first row; the end of worker.log:\n" + "\n".join(log[-15:])


def _one_worker(
    rows: list[Row], options: PerfOptions, folder: Path, report: Path, outcome: WorkerReports, watch: Watch
) -> list[Row]:
    """Run one worker to its end, take in its events, and return the rows that it left."""
    _save(rows, options, folder)
    variables = environment() | (ONE_COMPILER if options.until else {})
    (folder / EVENTS).write_text("")
    left = {row.id: row for row in rows}
    running = ""
    with (folder / "worker.log").open("w") as log:
        process = subprocess.Popen(_command(folder, report), stdout=log, stderr=subprocess.STDOUT, env=variables)
        try:
            for name, told in _events(process, folder / EVENTS, options.row_limit):
                if name == "start":
                    running = told
                    watch(running)
                elif name == "row":
                    result = decode(RowResult, told, EVENTS)
                    left.pop(result.id, None)
                    running = ""
                    _end(result, outcome, watch)
                else:
                    _take(name, told, outcome)
        finally:  # of an interrupted run, or one whose output goes nowhere
            process.kill()
            process.wait()
    if running:
        error = f"the worker process did not survive it ({_ending(process, options)})"
        lost = left.pop(running)
        _end(lost.not_timed(SKIPPED if lost.backend == peers.NAME else FAILED, error), outcome, watch)
    return list(left.values())


def _ending(process: subprocess.Popen[bytes], options: PerfOptions) -> str:
    if process.returncode == -9:
        return f"killed after {options.row_limit:.0f} s"
    return f"exit status {process.returncode}"


def _end(result: RowResult, outcome: WorkerReports, watch: Watch) -> None:
    outcome.rows.append(result)
    watch(result)


def _take(name: str, told: Any, outcome: WorkerReports) -> None:
    if name == "machine":
        outcome.machine = decode(MeasuringMachine, told, EVENTS)
    elif name == "ceilings":
        outcome.ceilings = decode(Ceilings, told, EVENTS)
    elif name == "seconds":
        outcome.seconds |= told


def _events(process: subprocess.Popen[bytes], path: Path, limit: float) -> Iterator[Event]:
    """The worker's events as they come; a worker that says nothing for too long is killed."""
    heard, allowed = time.monotonic(), START_LIMIT
    with path.open(encoding="utf-8") as file:
        rest = ""
        while True:
            ended = process.poll() is not None
            rest += file.read()
            *lines, rest = rest.split("\n")
            for line in lines:
                heard, allowed = time.monotonic(), limit
                name, told = json.loads(line)
                yield name, told
            if ended:
                return
            if time.monotonic() - heard > allowed:
                process.kill()
                process.wait()
            time.sleep(0 if lines else POLL)


def _command(folder: Path, report: Path) -> list[str]:
    suite = str(Path(__file__).with_name("row_tests.py"))
    own = ["-c", str(folder / "pytest.ini"), "--rootdir", str(folder), "--import-mode=importlib", "--noconftest"]
    plugins = ["-p", "no:cacheprovider", "-p", "kernelmux.perf.session.pytest_plugin", FOLDER, str(folder)]
    storage = f"--benchmark-storage={(folder / 'storage').as_uri()}"
    engine = [f"--benchmark-json={report}", storage, "--benchmark-disable-gc", "--benchmark-quiet"]
    return [sys.executable, "-m", "pytest", suite, "-q", *own, *plugins, *engine]


def environment() -> dict[str, str]:
    """The caller's, with its import path: under Bazel or an editable install a child would not find us.

    Without what pytest-xdist left there, if the caller is a worker of it: pytest-benchmark would measure nothing.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST_")}
    return own | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def _merged(parts: list[Path]) -> str | None:
    """One pytest-benchmark file out of those of the workers, in their order; a killed worker left none."""
    reports = []
    for part in sorted(parts, key=lambda path: int(path.stem.rpartition("-")[2])):
        with suppress(ValueError):  # cut off in the middle
            reports.append(json.loads(part.read_text()))
    if not reports:
        return None
    reports[0]["benchmarks"] = [b for report in reports for b in report["benchmarks"]]
    return json.dumps(reports[0], indent=1)
