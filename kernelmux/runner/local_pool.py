"""Worker processes of this machine, each in a slot: started, given items, ended at a limit, started anew when they are
lost.

The processes are execnet's, which pytest-xdist stands on: unlike xdist it tells of one process at a time what became of it,
unlike loky it goes on when a process dies, and what a process is to run need not be importable by the one that starts
it. The same class runs in each node of a cluster.
"""

from __future__ import annotations

import json
import math
import os
import queue
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import execnet

from kernelmux.runner import worker
from kernelmux.runner.item import Item, Slot

START_LIMIT = 300.0  # seconds until a process has imported what it needs
STARTS = 2  # that may fail one after the other; then a slot is given up
WITHOUT = "PYTEST_XDIST_"  # variables of a pytest-xdist that this process may be a worker of
LINES, TAIL = 8, 1200  # of a log, and characters of it, that a reason shows
BEFORE = 2  # lines before a crash of Python
DYING = 5.0  # seconds that a process takes at most, once its channel has closed

READY, ROW, GONE, CLOSED = "ready", "row", "gone", "closed"


@dataclass(frozen=True)
class Event:
    """What became of a slot. kind: READY (value: facts of its machine), ROW (value: the row, and whether the worker is
    lost), GONE (value: the reason; the next READY is of a new process), CLOSED (value: the reason; nothing more comes).

    outside: of GONE: something from outside ended it, so that its item may be tried again.
    """

    slot: Slot
    kind: str
    value: Any = None
    outside: bool = False


@dataclass
class _Process:
    """A worker process. deadline: by time.monotonic; ended: why we have ended it."""

    slot: Slot
    gateway: Any
    channel: Any
    log: Path
    deadline: float
    limit: float = math.inf
    pid: int = 0
    ready: bool = False
    ended: str = ""


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
        with suppress(OSError):
            self._group.terminate(timeout=1.0)

    def kill(self) -> None:
        """End all processes at once, whatever they do."""
        for process in self._processes.values():
            self._kill(process)

    def _start(self, slot: Slot) -> None:
        with _deaf():
            gateway = self._group.makegateway(f"popen//python={sys.executable}")
        channel = gateway.remote_exec(worker)
        log = self.logs / f"worker-{slot.id}.log"
        made = _Process(slot, gateway, channel, log, time.monotonic() + self.start_limit)
        told = {"serve": self.serve, "setup": self.setup, "path": sys.path, "log": str(log)}
        without = [name for name in os.environ if name.startswith(WITHOUT)]
        channel.send(json.dumps({**told, "environment": dict(slot.environment), "without": without}))
        self._processes[slot.id] = made
        channel.setcallback(lambda text: self._events.put((made, text)), endmarker=None)

    def send(self, slot: Slot, item: Item, seconds: float) -> None:
        """Give a slot that is ready an item, and the seconds that it may take."""
        process = self._processes[slot.id]
        process.limit, process.deadline = item.limit, time.monotonic() + item.limit
        with suppress(OSError):  # the process is gone, which an event says
            process.channel.send(json.dumps([item.work, seconds]))

    def renew(self, slot: Slot) -> None:
        """End the process of a slot, whose context on the GPU is lost, and start another; no GONE comes of it."""
        process = self._processes.pop(slot.id)
        self._kill(process)
        self._leave(process)
        self._start(slot)

    def events(self, timeout: float) -> list[Event]:
        """What has happened, at the latest after so many seconds."""
        found: list[Event] = []
        wait = timeout
        while True:
            with suppress(queue.Empty):
                event = self._event(*self._events.get(timeout=wait) if wait > 0 else self._events.get_nowait())
                found += [event] if event else []
                wait = 0.0
                continue
            break
        self._end_late()
        return found

    def _end_late(self) -> None:
        now = time.monotonic()
        for process in self._processes.values():
            if now > process.deadline and not process.ended:
                took = (
                    f"it took more than {process.limit:g} s" if process.ready else "the process did not start in time"
                )
                process.ended = f"{took}, and was ended"
                self._kill(process)

    def _event(self, process: _Process, text: str | None) -> Event | None:
        if self._processes.get(process.slot.id) is not process:  # an earlier process of the slot
            return None
        if text is None:
            return self._gone(process)
        kind, value = json.loads(text)
        if kind == "started":
            process.pid = value
            return None
        process.deadline = math.inf
        if kind == READY:
            process.ready, self._failures[process.slot.id] = True, 0
            return Event(process.slot, READY, {**value, "pid": process.pid})
        return Event(process.slot, ROW, value)

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
        return Event(slot, GONE, reason, outside)

    def _kill(self, process: _Process) -> None:
        """The process and all that it has started."""
        if process.pid:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

    def _leave(self, process: _Process) -> None:
        """What a process leaves: others that it has started, and its place in the group."""
        self._kill(process)
        with suppress(OSError, EOFError):
            process.gateway.exit()

    def _reason(self, process: _Process) -> tuple[str, bool]:
        """Why a process has ended, and whether that came from outside."""
        try:
            process.channel.waitclose(1)
        except execnet.RemoteError as error:
            return f"the process failed: {str(error).strip()[-TAIL:]}", False
        except (EOFError, OSError):
            pass
        if process.ended:
            return process.ended, False
        status = _status(process.pid)
        if status is None:
            return f"the process ended before its items did{_tail(process.log)}", False
        if status == -signal.SIGKILL:
            return "the process was killed from outside: by a person, or by the system, which was out of memory", True
        said = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        return f"the process ended {said}{_tail(process.log)}", False


@contextmanager
def _deaf() -> Iterator[None]:
    """Processes that start inside never hear Ctrl-C; this one hears it behind."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _status(pid: int) -> int | None:
    """The exit status of a child process, negative for a signal; None if it does not end."""
    end = time.monotonic() + DYING
    while pid and time.monotonic() < end:
        try:
            found, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return None
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    return None


def _tail(log: Path) -> str:
    """What a process has printed last; of a crash, what came before it and where it was."""
    try:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    fatal = max((i for i, line in enumerate(lines) if line.startswith("Fatal Python error")), default=None)
    shown = lines[-LINES:] if fatal is None else [*lines[max(0, fatal - BEFORE) : fatal + 1], *_where(lines[fatal:])]
    return "; it printed:\n" + "\n".join(shown)[:TAIL] if shown else ""


def _where(crash: list[str]) -> list[str]:
    """The innermost frames of the thread that crashed, as faulthandler prints them behind those of others."""
    current = next((i for i, line in enumerate(crash) if line.startswith("Current thread")), 0)
    return crash[current + 1 : current + LINES]
