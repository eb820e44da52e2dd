"""What runs in the process of references: a task is imported, its inputs are drawn, and what is right is worked out.

    python -m kernelmux.judge.formats.reference.server DESCRIPTOR

A task's file is a stranger's too, so each task has a process of its own, which is forked: torch is imported once for all.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import torch

from kernelmux.candidate.channel import Channel, ChannelClosed, close
from kernelmux.judge import formats
from kernelmux.judge.formats import candidate_side
from kernelmux.judge.formats.bounds import expected
from kernelmux.judge.formats.projects import operator_samples
from kernelmux.judge.formats.reference import packing, survey
from kernelmux.judge.formats.task import FormatError, Task
from kernelmux.judge.formats.trial import first_line

DONE = 0


def main(descriptor: int) -> None:
    """Serve until the judge goes."""
    torch.set_num_threads(1)
    channel = Channel(socket.socket(fileno=descriptor))
    try:
        channel.send({"ready": True})
        while True:
            told, _ = channel.receive()
            task = Task.from_json(told["task"])
            if task.format == formats.backendbench.NAME and not task.cases:
                operator_samples.samples()  # once, before processes are forked
            child = os.fork()
            if child == 0:
                _child(channel, task, told)
            _, status = os.waitpid(child, 0)
            channel.send({"ended": _how(status)})
    except ChannelClosed:
        pass


def _how(status: int) -> str:
    """How a process has ended, in words."""
    if os.WIFSIGNALED(status):
        return f"the process ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"the process ended with status {os.waitstatus_to_exitcode(status)}"


def _child(channel: Channel, task: Task, told: dict[str, Any]) -> None:
    """Serve one task, and end the process."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    resource.setrlimit(resource.RLIMIT_AS, (told["memory"], told["memory"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        TaskServer(channel, task).run()
    except BaseException:
        os._exit(1)
    os._exit(DONE)


class TaskServer:
    """One task. checks: those of the trials that were handed over, of a task that has its own."""

    def __init__(self, channel: Channel, task: Task) -> None:
        self.channel, self.task = channel, task
        self.checks: list[Callable[[candidate_side.Outputs], str] | None] = []
        self.loaded: formats.Problem | None = None

    def run(self) -> None:
        self.channel.send({})
        while True:
            told, files = self.channel.receive()
            if told["do"] == "close":
                return
            try:
                reply, sent = getattr(self, f"do_{told['do']}")(told, files)
            except FormatError as error:
                reply, sent = {"failed": str(error)}, []
            except (Exception, SystemExit) as error:
                reply, sent = {"failed": f"{type(error).__name__}: {first_line(error)}"}, []
            finally:
                close(files)
            self.channel.send(reply, [region.file for region in sent])
            for region in sent:
                region.close()

    def problem(self) -> formats.Problem:
        if self.loaded is None:
            self.loaded = formats.problem(self.task)
        return self.loaded

    def do_open(self, told: dict[str, Any], files: list[int]) -> tuple[dict[str, Any], list[Any]]:
        """Import the reference; how many cases the task has."""
        return {"cases": self.problem().cases}, []

    def do_trial(self, told: dict[str, Any], files: list[int]) -> tuple[dict[str, Any], list[Any]]:
        """Inputs of a case and what is right for them."""
        self.problem().gain = float(told["gain"])
        trial = self.problem().trial(told["seed"], told["case"], told["limit"], told["model_seed"])
        right = expected.of(trial, told["seed"])
        call, leaves = trial.spelled()
        rows, given = [], list(leaves)
        for output in right.outputs:
            parts = {"value": output.value, "bound": output.bound, "undecided": output.undecided}
            places = {name: len(given) + i for i, name in enumerate(n for n, x in parts.items() if x is not None)}
            given += [x for x in parts.values() if x is not None]
            rows.append({**places, "dtype": _name(output.dtype), "also": output.also and _name(output.also)})
        more = [False] * (len(leaves) - len(trial.leaves))
        tensors, region = packing.packed(given)
        self.checks.append(right.check)
        reply = {
            "call": call,
            "leaves": len(leaves),
            "changes": [*trial.changes(), *more],
            "ignored": [*trial.ignored(), *more],
            "outputs": rows,
            "tensors": tensors,
            "op": right.op,
            "bound": right.bound,
            "own_check": right.check is not None,
            "parameters": bool(trial.parameters),
            "note": trial.note,
        }
        return reply, [region]

    def do_check(self, told: dict[str, Any], files: list[int]) -> tuple[dict[str, Any], list[Any]]:
        """What the task's own check says of outputs for a trial."""
        check = self.checks[told["trial"]]
        if check is None:
            raise FormatError("the task has no check of its own")
        outputs = tuple(packing.unpacked(told["tensors"], files[0], sys.maxsize))
        try:
            return {"wrong": check(outputs)}, []
        except Exception as error:  # of outputs that it did not expect
            return {"wrong": f"the task's own check raises {type(error).__name__}: {first_line(error)}"}, []

    def do_survey(self, told: dict[str, Any], files: list[int]) -> tuple[dict[str, Any], list[Any]]:
        """What the task is, as a row of the survey."""
        return survey.examined(self.problem(), told["check"], told["seed"], told["limit"]), []


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


if __name__ == "__main__":
    main(int(sys.argv[1]))
