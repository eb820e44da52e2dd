"""Worker processes, of execnet, each in a slot: started, given items, ended at a limit, started anew when they are lost.

The same class runs on a machine alone and in each node of a cluster.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import execnet

from kernelmux.runner import worker
from kernelmux.runner.interrupts import interrupts
from kernelmux.runner.item import Slot, WorkItem

START_LIMIT = 300.0  # seconds until a process has imported what it needs
STARTS = 2  # that may fail one after the other; then a slot is given up
LINES, TAIL, READ = 8, 1200, 1 << 16  # of a log: lines and characters that a reason shows, of so many bytes at its end
BEFORE = 2  # lines before a crash of Python
DYING = 5.0  # seconds that a process takes at most to end, once it was killed or its channel has closed
OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)  # which nothing in an item sends to itself
KILLED = "the process was killed from outside: by a person, or by the system, which was out of memory"
LOOK = 0.1  # seconds between two looks at the limits
ASLEEP = 5.0  # seconds between them that say that this process, or the machine, was stopped meanwhile

INTERRUPT = {signal.SIGINT}
# A process ends with the thread that has started it: this one stays. Neither hears Ctrl-C.
_starter = ThreadPoolExecutor(
    1, "kernelmux-workers", initializer=signal.pthread_sigmask, initargs=(signal.SIG_BLOCK, INTERRUPT)
)

READY, ROW, GONE, CLOSED = "ready", "row", "gone", "closed"
BEGAN = "began"  # of what a process tells, what is no event


@dataclass(frozen=True)
class Event:
    """What became of a slot. kind: READY (value: facts of its machine), ROW (value: the row, and whether the process is
    lost), GONE (value: the reason), CLOSED (value: the reason; nothing more comes). Behind a process that is lost or gone
    the next READY is of a new one.

    outside: of GONE: it is no fault of its item, which may be tried again; began: it had begun that.
    """

    slot: Slot
    kind: str
    value: Any = None
    outside: bool = False
    began: bool = True


@dataclass(eq=False)
class _Process:
    """A worker process. log_from: where in its log its lines begin. deadline: by time.monotonic; late: what is said of it
    then; ended: why we have ended it; gone_at: when it is taken for gone without a word from it. began: its item. failed:
    how many before it in its slot, one after the other, did not get ready. channel, popen: None if it could not be started.
    """

    slot: Slot
    log: Path
    log_from: int
    deadline: float
    failed: int = 0
    channel: Any = None
    popen: Any = None
    late: str = "the process did not start in time"
    gone_at: float = math.inf
    ready: bool = False
    began: bool = True
    ended: str = ""


class _Mail:
    """What the processes tell, in order: threads put it, one takes it.

    A signal neither prolongs the wait nor breaks it. `queue.SimpleQueue.get` waits without end where the handler of a
    signal returns behind the timeout (Python 3.11, 3.12); KeyboardInterrupt inside `queue.Queue.get` may leave its lock
    in disorder.
    """

    def __init__(self) -> None:
        self._told: deque[tuple[_Process, str | None]] = deque()
        self._some = threading.Lock()  # held while nothing has been put since the last look
        self._some.acquire()

    def put(self, told: tuple[_Process, str | None]) -> None:
        self._told.append(told)
        with suppress(RuntimeError):  # it is free: there was something
            self._some.release()

    def get(self, timeout: float) -> Iterator[tuple[_Process, str | None]]:
        """What there is, after so many seconds at most if there is nothing yet."""
        self._some.acquire(timeout=timeout)
        while self._told:
            yield self._told.popleft()


@dataclass
class LocalPool:
    """serve, setup: of the suite. logs: a folder for what the processes print."""

    slots: Sequence[Slot]
    serve: str
    setup: Any
    logs: Path
    _group: execnet.Group = field(default_factory=execnet.Group)
    _processes: dict[str, _Process] = field(default_factory=dict)
    _mail: _Mail = field(default_factory=_Mail)
    _looked: float = math.inf  # when the limits were looked at

    def __enter__(self) -> LocalPool:
        interrupts.before_the_end = self.kill
        with ExitStack() as stack:
            stack.push(self)
            for slot in self.slots:
                self._start(slot)
            stack.pop_all()
        return self

    def __exit__(self, *details: object) -> None:
        self.kill()
        self._processes.clear()
        self._group.terminate(timeout=1.0)

    def kill(self) -> None:
        """End all processes at once, whatever they do."""
        for process in list(self._processes.values()):
            self._kill(process)

    def _start(self, slot: Slot, failed: int = 0) -> None:
        log = self.logs / f"worker-{slot.id}.log"
        size = log.stat().st_size if log.exists() else 0
        made = self._processes[slot.id] = _Process(slot, log, size, time.monotonic() + START_LIMIT, failed)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPT)
        try:
            _starter.submit(self._open, made).result()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)  # this thread hears Ctrl-C, from here on

    def _open(self, made: _Process) -> None:
        slot = made.slot
        told = {"serve": self.serve, "setup": self.setup, "log": str(made.log)}
        told |= {"path": list(slot.path) or sys.path, "environment": dict(slot.environment)}
        spec = execnet.XSpec("popen//execmodel=main_thread_only")  # to whose command execnet adds its own code
        spec.python = shlex.join([sys.executable, "-u", worker.__file__, str(os.getpid())])
        try:
            made.channel = self._group.makegateway(spec).remote_exec(worker)
            made.popen = made.channel.gateway._io.popen
            made.channel.send(json.dumps(told))
            made.channel.setcallback(lambda text: self._mail.put((made, text)), endmarker=None)
        except (OSError, EOFError, AssertionError) as error:  # no process, or one that ended at once
            made.ended = f"no process could be started: {type(error).__name__}: {error}"
            self._mail.put((made, None))

    def cards(self) -> list[str]:
        """The kinds of cards of the slots, "" for none."""
        return sorted({slot.card for slot in self.slots})

    def starting(self) -> bool:
        """Whether a slot that is not ready may still become so."""
        return any(not process.ready for process in self._processes.values())

    def send(self, slot: Slot, item: WorkItem, seconds: float) -> None:
        """Give a slot that is ready an item, and the seconds that it may take."""
        if process := self._processes.get(slot.id):
            process.deadline, process.late = time.monotonic() + item.limit, f"it took more than {item.limit:g} s"
            process.began = False
            with suppress(OSError):  # the process is gone, which an event says
                process.channel.send(json.dumps([item.work, seconds]))

    def close(self, slot: Slot) -> None:
        """End the process of a slot for good, and wait until what it has of a GPU is free. No event comes of it."""
        if (process := self._leave(slot)) and process.popen:
            with suppress(subprocess.TimeoutExpired):
                process.popen.wait(DYING)

    def events(self, timeout: float) -> list[Event]:
        """What has happened, at the latest after so many seconds."""
        found = [event for process, text in self._mail.get(timeout) for event in self._events_of(process, text)]
        self._end_late(time.monotonic())
        return found

    def _end_late(self, now: float) -> None:
        """End what is over its limit; take for gone what has ended without a word, or does not end."""
        if 0 <= (pause := now - self._looked) < LOOK:
            return
        self._looked = now
        for process in self._processes.values():
            if pause > ASLEEP:
                process.deadline += pause
            elif now > process.gone_at:
                process.gone_at = math.inf
                self._mail.put((process, None))
            elif now > process.deadline and not process.ended:
                process.ended, process.gone_at = f"{process.late}, and was ended", now + DYING
                self._kill(process)
            elif process.popen and process.gone_at == math.inf and process.popen.poll() is not None:
                process.gone_at = now + 1.0

    def _events_of(self, process: _Process, text: str | None) -> Iterator[Event]:
        """What a process, but none before it in its slot, tells of; None: it has ended."""
        slot = process.slot
        if self._processes.get(slot.id) is not process:
            return
        if text is None:
            yield self._gone(process)
            return
        kind, value = json.loads(text)
        if kind == BEGAN:
            process.began = True
            return
        process.deadline = math.inf
        if kind == READY:
            process.ready = True
        elif value[1] or process.ended:  # the process is lost
            value[1] = True
            self._leave(slot)
            self._start(slot)
        yield Event(slot, kind, value)

    def _gone(self, process: _Process) -> Event:
        """A process has ended, or its function has: start another, unless none of them gets ready."""
        slot, reason = process.slot, process.ended or self._reason(process)
        self._leave(slot)
        failed = 0 if process.ready else process.failed + 1
        if failed >= STARTS:
            return Event(slot, CLOSED, reason)
        self._start(slot, failed)
        return Event(slot, GONE, reason, reason == KILLED or not process.began, process.began)

    def _kill(self, process: _Process) -> None:
        """The process and all that it has started."""
        if process.popen:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.popen.pid, signal.SIGKILL)
            process.popen.kill()  # it may not lead its group yet

    def _leave(self, slot: Slot) -> _Process | None:
        """End the process of a slot, with others that it has started; nothing more is heard of it."""
        process = self._processes.pop(slot.id, None)
        if process and process.popen:
            self._kill(process)
            process.channel.gateway.exit()
        return process

    def _reason(self, process: _Process) -> str:
        """Why a process has ended."""
        try:
            process.channel.waitclose(1)
            return f"{self.serve} returned before its items had ended{_tail(process)}"
        except execnet.RemoteError as error:
            return f"the process failed: {str(error).strip()[-TAIL:]}"
        except (EOFError, OSError):
            pass
        try:
            status = process.popen.wait(DYING)
        except subprocess.TimeoutExpired:
            return f"the process closed its pipe and did not end{_tail(process)}"
        if status in OUTSIDE:
            return KILLED
        said = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        return f"the process ended {said}{_tail(process)}"


def _tail(process: _Process) -> str:
    """What a process has printed last; of a crash of Python, what came before it and where it was."""
    try:
        with process.log.open("rb") as log:
            log.seek(max(process.log_from, log.seek(0, os.SEEK_END) - READ))
            lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    shown, crash = lines[-LINES:], [i for i, line in enumerate(lines) if line.startswith("Fatal Python error")]
    if crash:  # behind it are the threads, each with its innermost frame first
        current = (i for i, line in enumerate(lines) if line.startswith("Current thread") and i > crash[-1])
        where = next(current, crash[-1]) + 1
        shown = [*lines[max(0, crash[-1] - BEFORE) : crash[-1] + 1], *lines[where : where + LINES - 1]]
    return "; it printed:\n" + "\n".join(shown)[:TAIL] if shown else ""
