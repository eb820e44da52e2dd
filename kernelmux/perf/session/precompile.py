"""Compiles ahead: processes side by side call every variant once, so that the timing worker finds its code on disk.

NVRTC, Triton and torch.compile take seconds per kernel and one core; their caches are shared between processes. Each
process takes the next row that none has taken, in the order of the plan, and writes down how long it took.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch

from kernelmux.perf import peers
from kernelmux.perf.planning.plan import BASELINE, Row
from kernelmux.perf.rows.codec import decode
from kernelmux.perf.rows.options import from_dict
from kernelmux.perf.session.harness import PLAN
from kernelmux.perf.timing import inputs
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import temporary_backends
from kernelmux.registry.spec import Call

LIMIT = 150.0  # seconds; the timing worker compiles what is left
WORTH = 12  # rows; with fewer, importing torch takes longer than compiling
TAKEN, DONE = "taken-{}", "compiled-{}.jsonl"


@dataclass(frozen=True)
class CompileTimes:
    """seconds: by the id of each row that was compiled. late: ids of rows whose compiler was stopped at the limit."""

    seconds: dict[str, float] = field(default_factory=dict)
    late: tuple[str, ...] = ()


def compile_all(
    folder: Path, rows: list[Row], jobs: int, environment: dict[str, str], limit: float = LIMIT
) -> CompileTimes:
    """Run the processes to their end, or to the limit; the timing worker reports what fails."""
    todo = [row for row in rows if _compiles(row)]
    if jobs < 1 or len(todo) < WORTH:
        return CompileTimes()
    with (folder / "ahead.log").open("w") as log:
        command = [sys.executable, "-m", "kernelmux.perf.session.precompile", str(folder)]
        started = [
            subprocess.Popen([*command, str(i)], stdout=log, stderr=subprocess.STDOUT, env=environment)
            for i in range(min(jobs, len(todo)))
        ]
        stopped = _wait(started, limit)
    return _compile_times(folder, todo, stopped)


def _compiles(row: Row) -> bool:
    """Whether a row has code of its own, which its first call compiles."""
    return not row.again and not row.problem and row.backend != BASELINE


def _wait(started: list[subprocess.Popen[bytes]], limit: float) -> set[int]:
    """Wait for the processes; the numbers of those that were stopped at the limit."""
    deadline = time.monotonic() + limit
    stopped = set()
    try:
        for process in started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
    finally:
        for i, process in enumerate(started):
            if process.poll() is None:
                stopped.add(i)
            process.kill()
            process.wait()
    return stopped


def _compile_times(folder: Path, todo: list[Row], stopped: set[int]) -> CompileTimes:
    """What the processes wrote down. A row that was taken and not finished is late if its process was stopped on it."""
    seconds = {}
    for path in folder.glob(DONE.format("*")):
        for line in path.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):  # cut off in the middle
                name, took = json.loads(line)
                seconds[str(name)] = float(took)
    late = [row.id for i, row in enumerate(todo) if row.id not in seconds and _taker(folder, i) in stopped]
    return CompileTimes(seconds, tuple(late))


def _taker(folder: Path, number: int) -> int | None:
    try:
        return int((folder / TAKEN.format(number)).read_text())
    except (OSError, ValueError):
        return None


def main(folder: Path, share: int) -> None:
    """Call once what no other process has taken."""
    told = json.loads((folder / PLAN).read_text())
    options = from_dict(told["options"])
    if options.peers:
        peers.join()
    ExitStack().enter_context(temporary_backends.joined(options.impl, "".join(options.ops)))  # until the process ends
    rows = [row for row in (decode(Row, fields, PLAN) for fields in told["rows"]) if _compiles(row)]
    with (folder / DONE.format(share)).open("w", encoding="utf-8") as done:
        for row in _taken(folder, rows, share):
            began = time.perf_counter()
            _try(row, inputs.one(row, options.device))
            print(json.dumps([row.id, time.perf_counter() - began]), file=done, flush=True)
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


def _taken(folder: Path, rows: list[Row], share: int) -> Iterator[Row]:
    """The rows that this process is the first to take."""
    for i, row in enumerate(rows):
        with suppress(FileExistsError):
            with (folder / TAKEN.format(i)).open("x") as file:
                file.write(str(share))
            yield row


def _try(row: Row, call: Call) -> None:
    try:
        implementation = registered.variants(row.backend, row.op)[row.variant]
        implementation.fn(*inputs.Inputs((call,)).arguments(implementation)[0])
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    except Exception as error:
        print(f"{row.id}: {type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
