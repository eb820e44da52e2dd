"""Processes that are there before a candidate is: each has imported torch, and serves one candidate."""

from __future__ import annotations

import threading
from collections import deque

from kernelmux.candidate.limits import Limits
from kernelmux.candidate.worker_process import Worker


class WarmPool:
    """size: how many wait. They import beside what else goes on: where the last one is taken, or `fill` is called."""

    def __init__(self, size: int = 2, limits: Limits | None = None) -> None:
        self.limits, self.size = limits or Limits(), size
        self._waiting: deque[Worker] = deque()
        self._lock = threading.Lock()

    def __enter__(self) -> WarmPool:
        self.fill()
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    @property
    def waiting(self) -> int:
        """How many were started and not taken."""
        return len(self._waiting)

    def take(self) -> Worker:
        """One that waits; it is the caller's from here on."""
        with self._lock:
            self._fill(1)
            found = self._waiting.popleft()
            if not self._waiting:
                self._fill(self.size)
            return found

    def fill(self) -> None:
        """Start as many as are to wait."""
        with self._lock:
            self._fill(self.size)

    def close(self) -> None:
        """End those that wait."""
        with self._lock:
            while self._waiting:
                self._waiting.pop().kill()

    def _fill(self, size: int) -> None:
        while len(self._waiting) < size:
            self._waiting.append(Worker(None, self.limits))
