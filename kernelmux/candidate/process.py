"""A candidate as the suite has it: its process is started at the first request, and anew after it has ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

from kernelmux.candidate import condition_calls, limits
from kernelmux.candidate.allocations import Guard, Virtual
from kernelmux.candidate.calls_ahead import CallsAhead, Collected
from kernelmux.candidate.errors import CandidateError
from kernelmux.candidate.limits import Limits
from kernelmux.candidate.worker_process import Worker

DEATHS = 3  # of the process of one candidate in a run, after which it is not started again


class CandidateProcess:
    """The process of one candidate, a function of a file; started at the first request, and again after it has ended.

    Calls come one after another, whatever threads they come from. launched: the names of the kernels that the emulator has
    run for it, with how often; operators: those of torch that it says it has called. take: gives a process that is there
    already: it does not see the folder of the file, and gets its text.
    """

    def __init__(
        self, path: Path, name: str, device: str, given: Limits | None = None, take: Callable[[], Worker] | None = None
    ) -> None:
        self.path, self.name, self.device, self.limits = path, name, device, given or Limits()
        self.begins = name  # where its text begins, among the names of the file
        self.written = path.stat().st_mtime_ns  # when the file was, in ns
        self._take = take
        self.launched: dict[str, int] = {}
        self.operators: set[str] = set()
        self._turn = threading.RLock()
        self._worker: Worker | None = None
        self._deaths = 0
        self._collected: list[Sequence[Any]] | None = None
        self._flying: CallsAhead | None = None  # sent, and not settled
        self._ahead: CallsAhead | None = None  # whose results are taken
        self.pace = float("inf")  # seconds that a call was waited for lately

    def __enter__(self) -> CandidateProcess:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def close(self) -> None:
        with self._turn:
            if self._worker:
                self._worker.kill()
                self._worker = None

    def resident(self) -> int:
        """Bytes of memory that the process has for itself, and what it has started; 0 without a process."""
        with self._turn:
            self._settle()
            return limits.in_use(self._worker.popen.pid).memory if self._worker else 0

    def claims(self) -> dict[str, Any]:
        """What the file says of itself; CandidateError if it cannot be imported."""
        with self._turn:
            return self._ready().claims

    def age(self) -> float:
        """Seconds since the file was imported by the process that is there now; 0 without one."""
        with self._turn:
            return time.monotonic() - self._worker.loaded if self._worker else 0.0

    def awake(self, seconds: float, meanwhile: Iterable[object] = ()) -> str:
        """What of its process goes on while nothing is asked of it, looked at for so long: in words, "" for nothing.

        meanwhile: its steps, which ask nothing of it, are taken as long as that lasts.
        """
        with self._turn:
            self._settle()
            return limits.awake(self._worker.popen.pid, seconds, meanwhile) if self._worker else ""

    def call(self, values: Sequence[Any]) -> Any:
        """The result for these arguments; CandidateError, or an EmulatorError of a kernel that it has launched."""
        if self._collected is not None:
            self._collected.append(values)
            raise Collected
        return self._ahead.take(values, self._one) if self._ahead else self._one(values)

    def _one(self, values: Sequence[Any]) -> Any:
        return self.calls([values])[0]

    @contextmanager
    def collected(self) -> Iterator[list[Sequence[Any]]]:
        """Calls in here raise `Collected`, and reach no process: their arguments are listed."""
        self._collected = found = list[Sequence[Any]]()
        try:
            yield found
        finally:
            self._collected = None

    def send(self, each: Sequence[Sequence[Any]], guarded: bool = False) -> CallsAhead:
        """Have calls made, one after another, beside what goes on here; their tensors have to stay as they are.

        Anything else that is asked of the process waits for them. guarded: what they allocate lies between canaries, and
        a write outside of it is an error of the message.
        """
        with self._turn, _disable_current_modes():
            self._settle()
            if not each:
                return CallsAhead((), list)
            try:
                worker = self._ready()
                asked = worker.begin(each, Guard() if guarded else None)
            except CandidateError as error:  # what is asked next tells it again, or all is well
                self._after(self._worker, told=False)
                self._flying = failed = CallsAhead(each, partial(_raise, error))
                return failed
            self._flying = CallsAhead(each, partial(self._finish, worker, asked))
            return self._flying

    @contextmanager
    def answering(self, ahead: CallsAhead) -> Iterator[None]:
        """Calls in here have the results of those that were made ahead, as far as they are among them."""
        with self._turn:
            ahead.settle()
            self._flying = None if self._flying is ahead else self._flying
            self._ahead = ahead
        try:
            yield
        finally:
            self._ahead = None

    def _finish(self, worker: Worker, asked: Any) -> list[Any]:
        begun = time.monotonic()
        with _disable_current_modes():
            try:
                found = worker.finish(asked, ahead=True)
                for made in asked.guard.memory if asked.guard else ():
                    if damage := made.damage():
                        raise CandidateError(f"wrote outside of {made.name}: {damage}")
                return found
            finally:
                self.pace = (time.monotonic() - begun) / asked.count
                self._after(worker, told=False)

    def _settle(self) -> None:
        if self._flying:
            self._flying.settle()
            self._flying = None

    def _after(self, worker: Worker | None, told: bool = True) -> None:
        """A process that is of no more use goes. told: how it ended; else its calls are made again, which tells it."""
        if worker and worker.over and worker is self._worker:
            self._deaths += told
            worker.kill()
            self._worker = None

    def calls(self, each: Sequence[Sequence[Any]], threads: bool = False, order: str = "") -> list[Any]:
        """The results of several calls without a pause between them; threads: from as many threads, all at once.

        order: on a GPU, among other work of it: `gpu.order.LATE` or `CAPTURED`.
        """
        modes = _get_current_dispatch_mode_stack()
        guard = next((m for m in reversed(modes) if isinstance(m, Guard)), None)
        virtual = any(isinstance(m, Virtual) for m in modes)
        with self._turn, _disable_current_modes(), self._watched() as worker:  # what a suite listens to is not this
            begun = time.monotonic()
            try:
                return worker.finish(worker.begin(each, guard, virtual, threads, order))
            finally:
                self.pace = (time.monotonic() - begun) / len(each)

    def condition(self, index: int, call: Any) -> str | None:
        """None if a call meets a condition of the candidate's own, else the reason."""
        message = {"do": "condition", "index": index, "call": condition_calls.described(call)}
        with self._turn, self._watched() as worker:
            told = worker.timed(message, when="in a condition")[0]["reason"]
        return None if told is None else str(told)

    def timed(self, message: dict[str, Any], files: Sequence[int] = ()) -> tuple[dict[str, Any], float]:
        """The answer to a message of `gpu.timed_calls`, and the seconds that it took."""
        with self._turn, self._watched() as worker:
            return worker.timed(message, files)

    @contextmanager
    def _watched(self) -> Iterator[Worker]:
        """The process; one that is of no more use afterwards is ended."""
        self._settle()
        worker = self._ready()
        try:
            yield worker
        finally:
            self._after(worker)

    def _ready(self) -> Worker:
        if self._worker is None:
            if self._deaths >= DEATHS:
                raise CandidateError(f"its process ended {self._deaths} times, as told before: it is not started again")
            made = self._started()
            made.launched, made.operators = self.launched, self.operators
            try:
                self._load(made)
            except BaseException:
                made.kill()
                raise
            self._worker = made
        return self._worker

    def _started(self) -> Worker:
        return self._take() if self._take else Worker(self.path, self.limits)

    def _load(self, worker: Worker) -> None:
        worker.load(self.path, self.device, with_text=self._take is not None, name=self.name)


def _raise(error: Exception) -> list[Any]:
    raise error
