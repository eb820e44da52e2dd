"""Ctrl-C: the first ends a run, which still writes what it has found; another a second later ends the process at once.

Several within a second are one: a terminal sends one, `timeout -s INT` two. Imported before anything that takes long.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130  # the exit status, as a shell reports SIGINT
ONE = 1.0  # seconds in which several are one


class Interrupts:
    """What this process does about Ctrl-C.

    before_the_end: called before the process ends at once. program: what its last line begins with.
    """

    def __init__(self) -> None:
        self.first: float | None = None  # when it came, by time.monotonic
        self.before_the_end: Callable[[], object] = bool
        self.program = "kernelmux"
        self._waits = False

    def listen(self, program: str) -> None:
        """Take Ctrl-C from here on, unless this process is not to hear it, or another handler is set."""
        self.program = program
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._take)

    def _take(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.first is None:
            self.first = now
            if not self._waits:
                raise KeyboardInterrupt
        elif now - self.first > ONE:  # the process ends with one line and no traceback
            self.before_the_end()
            cursor = "\033[?25h" if sys.stdout.isatty() else ""  # a progress bar hides it
            os.write(sys.stderr.fileno(), f"{cursor}{self.program}: interrupted\n".encode())
            os._exit(INTERRUPTED)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside, the first Ctrl-C waits; on leaving, the KeyboardInterrupt of one that has come is raised.

        For imports, since some libraries swallow every exception while they are imported; for files that are to be whole.
        """
        before, waited, self._waits = self.first, self._waits, True
        try:
            yield
        finally:
            self._waits = waited
        if self.first is not before and not waited:
            raise KeyboardInterrupt


interrupts = Interrupts()
