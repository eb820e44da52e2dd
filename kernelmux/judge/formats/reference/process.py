"""The process of references as the judge has it: it is asked for inputs and right results, and ended where it hangs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kernelmux.candidate import memory, sandbox
from kernelmux.candidate.channel import Channel, ChannelClosed, Late, Unexpected, close
from kernelmux.candidate.limits import Limits
from kernelmux.judge.formats.bounds.expected import ExpectedOutput, ExpectedResult
from kernelmux.judge.formats.candidate_side import Outputs
from kernelmux.judge.formats.reference import packing
from kernelmux.judge.formats.task import FormatError, Task

START = 600.0  # seconds until it is there, and until it has left a task


@dataclass(frozen=True)
class TaskLimits:
    """size: bytes of the tensors of a call, beyond which sizes are reduced; seconds: of a trial; memory: bytes in all."""

    size: int = 4 << 30
    seconds: float = 120.0
    memory: int = 24 << 30


@dataclass(frozen=True, eq=False)
class HandedTrial:
    """A call of a task, as the judge has it.

    call: how its tensors, the leaves, lie in the arguments, as JSON that goes to the candidate as it is. changes: which of
    them the reference itself writes into; ignored: which it does not read. right: the results. parameters: whether some of
    the leaves are those of a module.
    """

    call: str
    leaves: list[torch.Tensor]
    changes: list[bool]
    ignored: list[bool]
    right: ExpectedResult
    parameters: bool
    note: str


class ReferenceProcess:
    """Runs references one after another, each in a process of its own; started at the first task, and again after a hang.

    path: the file or folder of the tasks, which it sees. walls: whether it is kept behind them. Every error, of the
    reference or of its process, is a FormatError.
    """

    def __init__(self, path: Path, limits: TaskLimits, walls: bool = True) -> None:
        self.path, self.limits, self.walls = path.resolve(), limits, walls
        self.popen: subprocess.Popen[bytes] | None = None
        self.channel: Channel | None = None
        self.trials = 0
        self.within = False  # a task

    def __enter__(self) -> ReferenceProcess:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def open(self, task: Task) -> int:
        """Import the reference of a task, and leave the one before; how many cases it has."""
        self.enter(task)
        return int(self.ask({"do": "open"})[0]["cases"])

    def enter(self, task: Task) -> None:
        """Begin a task, nothing of which has run yet."""
        self._leave()
        if self.popen is None:
            self._start()
        self.trials, self.within = 0, True
        self.ask({"task": task.as_json(), "memory": self.limits.memory}, START)  # torch's own samples take a while

    def trial(self, case: int, seed: int, model_seed: int, gain: float = 1.0) -> HandedTrial:
        """Inputs of a case that are drawn from a seed, and what is right for them. gain: of the weights of a module."""
        asked = {"do": "trial", "case": case, "seed": seed, "model_seed": model_seed, "gain": gain}
        asked["limit"] = self.limits.size
        told, files = self.ask(asked)
        try:
            given = packing.unpacked(told["tensors"], files[0], 64 * self.limits.memory)
            number, self.trials = self.trials, self.trials + 1
            outputs = tuple(_output(row, given) for row in told["outputs"])
            right = ExpectedResult(
                outputs,
                str(told["op"]),
                str(told["bound"]),
                (lambda got: self._check(number, got)) if told["own_check"] else None,
            )
            return HandedTrial(
                str(told["call"]),
                given[: told["leaves"]],
                [x is True for x in told["changes"]],
                [x is True for x in told["ignored"]],
                right,
                bool(told["parameters"]),
                str(told["note"]),
            )
        except (memory.MisplacedTensor, KeyError, TypeError, IndexError, ValueError) as error:
            self.close()
            raise FormatError(f"the process of the reference answered with what is no trial: {error!r}") from error
        finally:
            close(files)

    def _check(self, number: int, got: Outputs) -> str:
        told, region = packing.packed(got)
        try:
            return str(self.ask({"do": "check", "trial": number, "tensors": told}, files=[region.file])[0]["wrong"])
        finally:
            region.close()

    def ask(
        self, message: dict[str, Any], seconds: float | None = None, files: Sequence[int] = ()
    ) -> tuple[dict[str, Any], list[int]]:
        """The answer to a message, and the files beside it, which are the caller's."""
        seconds = self.limits.seconds if seconds is None else seconds
        if self.channel is None:
            raise FormatError("the process of the reference has ended")
        try:
            self.channel.send(message, files)
            told, received = self.channel.receive(time.monotonic() + seconds)
        except Late:
            self.close()
            raise FormatError(f"no end within {seconds:g} s") from None
        except (ChannelClosed, Unexpected, OSError) as error:
            self.close()
            raise FormatError(f"the process of the reference broke the channel: {error}") from error
        if isinstance(told, dict) and not {"failed", "ended"} & told.keys():
            return told, received
        close(received)
        if not isinstance(told, dict):
            self.close()
            raise FormatError("the process of the reference answered with what is no answer")
        self.within = self.within and "ended" not in told
        raise FormatError(str(told.get("failed") or told.get("ended")))

    def _start(self) -> None:
        own, other = socket.socketpair()
        program = [sys.executable, "-P", "-m", "kernelmux.judge.formats.reference.server", str(other.fileno())]
        try:
            self.popen = subprocess.Popen(
                sandbox.walled(program, self.path, Limits(), shown=None) if self.walls else program,
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=sandbox.environment(tempfile.gettempdir()),  # behind walls it gets those of the walls
                start_new_session=True,
            )
        finally:
            other.close()
        self.channel = Channel(own)
        try:
            self.channel.receive(time.monotonic() + START)
        except (Late, ChannelClosed, Unexpected) as error:
            self.close()
            raise FormatError(f"the process of the reference did not start: {error}") from error

    def _leave(self) -> None:
        """End the process of the task before, which was forked."""
        if self.within and self.channel is not None:
            self.within = False
            try:
                self.channel.send({"do": "close"})
                _, files = self.channel.receive(time.monotonic() + START)
                close(files)
            except (Late, ChannelClosed, Unexpected):
                self.close()

    def close(self) -> None:
        """End the process, and what it has started."""
        self.within = False
        if self.popen is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.popen.pid, signal.SIGKILL)
            self.popen.kill()
            self.popen.wait()
            self.popen = None
        if self.channel is not None:
            self.channel.close()
            self.channel = None


def _output(row: dict[str, Any], given: Sequence[torch.Tensor]) -> ExpectedOutput:
    parts = {name: given[row[name]] if name in row else None for name in ("value", "bound", "undecided")}
    if parts["value"] is None:
        raise KeyError("value")
    also = memory.DTYPES[row["also"]] if row["also"] else None
    return ExpectedOutput(parts["value"], parts["bound"], memory.DTYPES[row["dtype"]], parts["undecided"], also)
