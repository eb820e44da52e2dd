"""Compiles configurations in processes side by side, without a GPU: each in a process of its own, as compilers may die.

`python -m kernelmux.tune.ahead FILE JOBS` reads tasks, imports what they need once, forks for each of them, and writes a
line of JSON as each one ends. What was compiled lies in Triton's cache, where a launch on the GPU finds it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kernelmux.perf.session.supervisor import environment
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.search_space import Config
from kernelmux.registry.errors import UnsupportedError
from kernelmux.tune.job import Job, compiled

PATIENCE = 60  # seconds for one configuration
SHOWN = 200  # characters of what a compiler says

Task = tuple[Job, Config, str]  # and the kind of its problem


def compile_all(tasks: Sequence[Task], jobs: int, seconds: float, watch: Callable[[], None]) -> dict[int, str]:
    """Compile the tasks, for so many seconds at most: by number, "" or why it is dropped. One that is left out is new."""
    found: dict[int, str] = {}
    with tempfile.TemporaryDirectory(prefix="kernelmux-tune-") as folder:
        plan = Path(folder, "tasks.json")
        plan.write_text(json.dumps([[asdict(job), config, kind] for job, config, kind in tasks]))
        command = [sys.executable, "-m", "kernelmux.tune.ahead", str(plan), str(jobs)]
        env = environment() | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=env, start_new_session=True) as process:
            try:
                for number, problem in _lines(process, time.monotonic() + seconds):
                    found[number] = problem
                    watch()
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
    if process.returncode > 0:
        raise UnsupportedError(f"the process that compiles ended with status {process.returncode}")
    return found


def _lines(process: subprocess.Popen[bytes], deadline: float) -> Iterator[tuple[int, str]]:
    """What the process writes until it ends, or until the deadline."""
    output: Any = process.stdout
    os.set_blocking(output.fileno(), False)
    rest = b""
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        rest += output.read() or b""
        *lines, rest = rest.split(b"\n")
        for line in lines:
            number, problem = json.loads(line)
            yield int(number), str(problem)
        if ended:
            return
        time.sleep(0.05)


def main(plan: Path, jobs: int) -> None:
    """Run the tasks of a file, so many at a time."""
    tasks = [(Job(**job), config, kind) for job, config, kind in json.loads(plan.read_text())]
    for backend, op in {(job.backend, job.op) for job, _, _ in tasks}:
        registered.variants(backend, op)  # imported here, once for all
    running: dict[int, int] = {}
    for number, task in enumerate(tasks):
        while len(running) >= jobs:
            _reap(running)
        running[_forked(task)] = number
    while running:
        _reap(running)


def _forked(task: Task) -> int:
    """The process that compiles a task; its status says whether that went well, and a file why it did not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads; the child only compiles
        child = os.fork()
    if child:
        return child
    faulthandler.disable()
    signal.alarm(PATIENCE)
    problem = ""
    try:
        compiled(*task)
    except BaseException as error:
        problem = f"{type(error).__name__}: {str(error).strip()}"[:SHOWN]
    _said(os.getpid()).write_text(problem)
    os._exit(0)


def _said(child: int) -> Path:
    return Path(sys.argv[1]).with_name(f"{child}.txt")


def _reap(running: dict[int, int]) -> None:
    """Wait for one of the processes, and tell what became of its task."""
    child, status = os.wait()
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        problem = f"it took more than {PATIENCE} s" if name == "SIGALRM" else f"the compiler dies of {name}"
    else:
        problem = _said(child).read_text() if _said(child).exists() else "the compiler ended without a word"
    print(json.dumps([running.pop(child), problem]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
