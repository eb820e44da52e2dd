"""Processes that are forked from one that has imported everything but the backends, each with a limit of time.

What a changed kernel does to its process, ends with it: a crash, a hang, what it keeps.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from kernelmux.runner.worker import PARENT_DEATH_SIGNAL

ENDED, HANGS = "ended", "hangs"  # how a process came to its end, beside the messages that it sent
Message = tuple[str, Any]


def messages(work: Callable[[Callable[[Any], None], Path], None], seconds: float, pause: float) -> Iterator[Message]:
    """Run `work(send, folder)` in a forked process; ("said", what) for all that it sends, then how it came to its end.

    The folder is its own, and goes with it. seconds: from start to end; pause: from one message to the next. ("ended", "")
    if it came to its end by itself, ("ended", why) if it died, ("hangs", why) if it took longer.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="kernelmux-mutant-") as folder:
        process = context.Process(target=_main, args=(work, theirs, Path(folder), os.getpid()))
        process.start()
        theirs.close()
        try:
            yield from _received(ours, process, seconds, pause)
        finally:
            if process.is_alive():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid or 0, signal.SIGKILL)
                process.kill()
            process.join()
            ours.close()


def _received(ours: Connection, process: Any, seconds: float, pause: float) -> Iterator[Message]:
    ends = time.monotonic() + seconds
    while True:
        left = min(pause, ends - time.monotonic())
        if left <= 0 or not ours.poll(left):
            yield HANGS, f"it said nothing for {pause:g} s" if left >= pause else f"it took longer than {seconds:g} s"
            return
        try:
            yield "said", ours.recv()
        except EOFError:
            process.join(10.0)
            code = process.exitcode
            yield ENDED, "" if code == 0 else f"its process ended by {_reason(code)}"
            return


def _reason(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit status {code}"
    return signal.Signals(-code).name


def _main(work: Callable[[Callable[[Any], None], Path], None], theirs: Connection, folder: Path, parent: int) -> None:
    """In the forked process: a group of its own, which ends with its parent."""
    with contextlib.suppress(PermissionError):  # it is the first of its session already
        os.setpgid(0, 0)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    work(theirs.send, folder)
