"""Worker processes, of execnet, each in a slot: started, given items, ended at a limit, started anew when they are lost.

The same class runs on a machine alone and in each node of a cluster.
"""

from __future__ import annotations

import json
import math
import os
import queue
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import execnet

from kernelmux.runner import worker
from kernelmux.runner.item import Slot, WorkItem

START_LIMIT = 300.0  # seconds until a process has imported what it needs
STARTS = 2  # that may fail one after the other; then a slot is given up
WITHOUT = "PYTEST_XDIST_"  # variables of a pytest-xdist that this process may be a worker of
LINES, TAIL, READ = 8, 1200, 1 << 16  # of a log: lines and characters that a reason shows, of so many bytes at its end
BEFORE = 2  # lines before a crash of Python
DYING = 5.0  # seconds that a process takes at most to end, once it was killed or its channel has closed
OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)  # which nothing in an item sends to itself
LOOK = 0.1  # seconds between two looks at the limits
ASLEEP = 5.0  # seconds between them that say that this process, or the machine, was stopped meanwhile

READY, ROW, GONE, CLOSED = "ready", "row", "gone", "closed"


@dataclass(frozen=True)
class Event:
    """What became of a slot. kind: READY (value: facts of its machine), ROW (value: the row, and whether the worker is
    lost), GONE (value: the reason; the next READY is of a new process), CLOSED (value: the reason; nothing more comes).

    outside: of GONE: something from outside ended it, so that its item may be tried again; began: it had begun that.
    """

    slot: Slot
    kind: str
    value: Any = None
    outside: bool = False
    began: bool = True


@dataclass(eq=False)
class _Process:
    """A worker process. log_from: where in its log its lines begin. deadline: by time.monotonic; ended: why we have ended
    it; gone_at: when it is taken for gone without a word from it. began: whether it has begun its item.
    """

    slot: Slot
    deadline: float
    log: Path
    log_from: int
    gateway: Any = None
    channel: Any = None
    limit: float = math.inf
    gone_at: float = math.inf
    ready: bool = False
    began: bool = True
    ended: str = ""

    @property
    def popen(self) -> Any:
        return self.gateway._io.popen


@dataclass
class LocalPool:
    """serve, setup: of the suite. logs: a folder for what the processes print."""

    slots: Iterable[Slot]
    serve: str
    setup: Any
    logs: Path
    start_limit: float = START_LIMIT
    _processes: dict[str, _Process] = field(default_factory=dict)
    _failures: dict[str, int] = field(default_factory=dict)
    # Of the standard library's queues the one whose wait Ctrl-C ends without an error of a lock.
    _events: queue.SimpleQueue[tuple[_Process, Any]] = field(default_factory=queue.SimpleQueue)
    _looked: float = math.inf  # when the limits were looked at

    def __enter__(self) -> LocalPool:
        self._group = execnet.Group(execmodel="thread")
        self._group.set_execmodel("thread", "main_thread_only")
        try:
            for slot in self.slots:
                self._start(slot)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *details: object) -> None:
        self.kill()
        self._processes.clear()
        with suppress(OSError):
            self._group.terminate(timeout=1.0)

    def kill(self) -> None:
        """End all processes at once, whatever they do."""
        for process in list(self._processes.values()):
            self._kill(process)

    def _start(self, slot: Slot) -> None:
        log = self.logs / f"worker-{slot.id}.log"
        size = log.stat().st_size if log.exists() else 0
        made = self._processes[slot.id] = _Process(slot, time.monotonic() + self.start_limit, log, size)
        told = {
            "serve": self.serve,
            "setup": self.setup,
            "path": list(slot.path) or sys.path,
            "log": str(log),
        }
        without = [name for name in os.environ if name.startswith(WITHOUT)]
        try:
            with _deaf():
                made.gateway = self._group.makegateway(_process())
            made.channel = made.gateway.remote_exec(worker)
            made.channel.send(json.dumps({**told, "environment": dict(slot.environment), "without": without}))
            made.channel.setcallback(lambda text: self._events.put((made, text)), endmarker=None)
        except (OSError, EOFError, AssertionError) as error:  # no process, or one that ended at once
            made.ended = f"no process could be started: {type(error).__name__}: {error}"
            self._events.put((made, None))

    def starting(self) -> bool:
        """Whether a slot that is not ready may still become so."""
        return any(not process.ready for process in self._processes.values())

    def send(self, slot: Slot, item: WorkItem, seconds: float) -> None:
        """Give a slot that is ready an item, and the seconds that it may take."""
        if (process := self._processes.get(slot.id)) is None:
            return
        process.limit, process.deadline, process.began = item.limit, time.monotonic() + item.limit, False
        with suppress(OSError):  # the process is gone, which an event says
            process.channel.send(json.dumps([item.work, seconds]))

    def renew(self, slot: Slot) -> None:
        """End the process of a slot, whose context on the GPU is lost, and start another; no GONE comes of it."""
        if process := self._processes.pop(slot.id, None):
            self._leave(process)
            self._start(slot)

    def close(self, slot: Slot) -> None:
        """End the process of a slot for good, and wait until what it has of a GPU is free. No event comes of it."""
        if process := self._processes.pop(slot.id, None):
            self._leave(process)
            with suppress(subprocess.TimeoutExpired, AttributeError):  # a process that never started
                process.popen.wait(DYING)

    def events(self, timeout: float) -> list[Event]:
        """What has happened, at the latest after so many seconds."""
        found: list[Event] = []
        wait = timeout
        with suppress(queue.Empty):
            while True:
                event = self._event(*(self._events.get(timeout=wait) if wait > 0 else self._events.get_nowait()))
                found += [event] if event else []
                wait = 0.0
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
                self._events.put((process, None))
            elif now > process.deadline and not process.ended:
                took = (
                    f"it took more than {process.limit:g} s" if process.ready else "the process did not start in time"
                )
                process.ended, process.gone_at = f"{took}, and was ended", now + DYING
                self._kill(process)
            elif process.gateway and process.gone_at == math.inf and process.popen.poll() is not None:
                process.gone_at = now + 1.0

    def _event(self, process: _Process, text: str | None) -> Event | None:
        if self._processes.get(process.slot.id) is not process:  # an earlier process of the slot
            return None
        if text is None:
            return self._gone(process)
        kind, value = json.loads(text)
        if kind == "began":
            process.began = True
            return None
        process.deadline = math.inf
        if kind == READY:
            process.ready, self._failures[process.slot.id] = True, 0
            return Event(process.slot, READY, {**value, "pid": process.popen.pid})
        row, lost = value
        return Event(process.slot, ROW, (row, lost or bool(process.ended)))

    def _gone(self, process: _Process) -> Event:
        """A process has ended, or its function has: start another, unless none of them gets ready."""
        slot = self._processes.pop(process.slot.id).slot
        reason, outside = self._reason(process)
        self._leave(process)
        if not process.ready:
            self._failures[slot.id] = self._failures.get(slot.id, 0) + 1
        if self._failures.get(slot.id, 0) >= STARTS:
            return Event(slot, CLOSED, reason)
        self._start(slot)
        return Event(slot, GONE, reason, outside, process.began)

    def _kill(self, process: _Process) -> None:
        """The process and all that it has started."""
        if process.gateway:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.popen.pid, signal.SIGKILL)
            process.popen.kill()  # it may not lead its group yet

    def _leave(self, process: _Process) -> None:
        """What a process leaves: others that it has started, and its place in the group."""
        self._kill(process)
        if process.gateway:
            with suppress(OSError, EOFError):
                process.gateway.exit()

    def _reason(self, process: _Process) -> tuple[str, bool]:
        """Why a process has ended, and whether that came from outside."""
        if process.ended:
            return process.ended, False
        try:
            process.channel.waitclose(1)
            return f"{self.serve} returned before its items had ended{_tail(process)}", not process.began
        except execnet.RemoteError as error:
            return f"the process failed: {str(error).strip()[-TAIL:]}", not process.began
        except (EOFError, OSError):
            pass
        try:
            status = process.popen.wait(DYING)
        except subprocess.TimeoutExpired:
            return f"the process closed its pipe and did not end{_tail(process)}", False
        if status in OUTSIDE:
            return "the process was killed from outside: by a person, or by the system, which was out of memory", True
        said = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        return f"the process ended {said}{_tail(process)}", not process.began


def _process() -> execnet.XSpec:
    """The process that execnet is to start; it adds its own code to the command."""
    spec = execnet.XSpec("popen")
    spec.python = shlex.join([sys.executable, "-u", worker.__file__, str(os.getpid())])
    return spec


@contextmanager
def _deaf() -> Iterator[None]:
    """Processes that start inside never hear Ctrl-C; this one hears it behind."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _tail(process: _Process) -> str:
    """What a process has printed last; of a crash, what came before it and where it was."""
    try:
        with process.log.open("rb") as log:
            log.seek(max(process.log_from, log.seek(0, os.SEEK_END) - READ))
            lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    fatal = max((i for i, line in enumerate(lines) if line.startswith("Fatal Python error")), default=None)
    shown = lines[-LINES:] if fatal is None else [*lines[max(0, fatal - BEFORE) : fatal + 1], *_where(lines[fatal:])]
    return "; it printed:\n" + "\n".join(shown)[:TAIL] if shown else ""


def _where(crash: list[str]) -> list[str]:
    """The innermost frames of the thread that crashed, as faulthandler prints them behind those of others."""
    current = next((i for i, line in enumerate(crash) if line.startswith("Current thread")), 0)
    return crash[current + 1 : current + LINES]
