"""A worker process as its parent sees it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

from kernelmux.perf.against.trees import Tree, is_import_root
from kernelmux.registry.errors import BackendUnavailable

PROGRAM = Path(__file__).resolve().with_name("worker.py")
START_LIMIT = 300.0  # seconds until the first answer: imports


class Failure(Exception):
    """A row cannot be timed, or its output is wrong, in the process of one tree; the text says why."""

    def __init__(self, worker: TreeWorker, text: str) -> None:
        super().__init__(text)
        self.worker = worker


class TreeWorker:
    """The process of one tree. limit: seconds after which an answer no longer comes."""

    def __init__(self, tree: Tree, device: str, log: IO[str], limit: float) -> None:
        self.tree, self.device, self.log, self.limit = tree, device, log, limit
        self._start()

    def _start(self) -> None:
        # In a session of its own: Ctrl-C reaches the parent alone, which ends it.
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(PROGRAM), self.device],
            env=environment(self.tree),
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            bufsize=1,
        )
        # Popen cannot say in its type that a stream asked for as PIPE is there.
        self.requests, self.answers = cast(IO[str], self.process.stdin), cast(IO[str], self.process.stdout)
        self.send("where")

    def greet(self) -> None:
        """Wait until the process has started; Failure, BackendUnavailable if it imports another tree."""
        registry, expected = self._answer(START_LIMIT), (self.tree.root / "kernelmux" / "registry").resolve()
        if Path(registry) != expected:
            raise BackendUnavailable(f"--against: {self.tree.name}: the registry came from {registry}, not {expected}")

    def revive(self) -> None:
        """Start again a process that was lost; Failure."""
        if self.process.poll() is not None:
            self.close()
            self._start()
            self.greet()

    def send(self, request: str, *arguments: Any) -> None:
        """Ask; an answer must have come before the next question."""
        with suppress(BrokenPipeError):  # `receive` says what became of the process
            self.requests.write(json.dumps([request, *arguments]) + "\n")

    def receive(self) -> Any:
        """The answer; Failure."""
        return self._answer(self.limit)

    def ask(self, request: str, *arguments: Any) -> Any:
        """Ask and wait for the answer; Failure."""
        self.send(request, *arguments)
        return self.receive()

    def _answer(self, limit: float) -> Any:
        if not select.select([self.answers], [], [], limit)[0]:
            self.close()
            raise Failure(self, f"killed after {limit:.0f} s without an answer")
        if not (line := self.answers.readline()):
            raise Failure(self, f"the process did not survive it (exit status {self.process.wait()})")
        status, told = json.loads(line)
        if status != "ok":
            raise Failure(self, told)
        return told

    def close(self) -> None:
        """End the process, whatever it does."""
        self.process.kill()
        self.process.wait()
        self.answers.close()
        with suppress(BrokenPipeError):  # of a question that the process has not read
            self.requests.close()


def environment(tree: Tree) -> dict[str, str]:
    """The caller's, with the tree in front of its import path; threads of torch that wait leave the CPU to the others."""
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    others = [path for path in given if not is_import_root(Path(path))]
    own = {"PYTHONPATH": os.pathsep.join([str(tree.root), *others])}
    return {"OMP_WAIT_POLICY": "PASSIVE"} | dict(os.environ) | own
