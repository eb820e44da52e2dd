"""pytest with one line of progress in place of a dot per test: ``python bazel/pytest_line.py <arguments of pytest>``.

In a terminal the line is written over; elsewhere it appears after every tenth of the tests. A failure is named at once
and told in full at the end.
"""

import os
import sys
import time
from typing import TextIO

import pytest


class Line:
    """Counts tests; a plugin of the process that reports, not of those that run tests for it."""

    def __init__(self, out: TextIO) -> None:
        self.out, self.start = out, time.monotonic()
        self.total = self.done = self.failed = 0
        self.overwrite = out.isatty()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.total = len(session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Every process collects all tests and then runs its share."""
        self.total = len(ids)

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> object:
        """The reporter writes no letter; the word of a failure is for its summary."""
        category, _, word = yield
        return category, "", word if report.failed else ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed += 1
            self._write(f"FAILED {report.nodeid}", "\n")

    def pytest_runtest_logfinish(self) -> None:
        self.done += 1
        if self.overwrite:
            self._write(str(self), "")
        elif self.done * 10 // self.total > (self.done - 1) * 10 // self.total:
            self._write(str(self), "\n")

    def pytest_sessionfinish(self) -> None:
        self._write("", "")

    def _write(self, text: str, end: str) -> None:
        clear = "\r\x1b[K" if self.overwrite else ""
        self.out.write(f"{clear}{text}{end}")
        self.out.flush()

    def __str__(self) -> str:
        share = f"{self.done} of {self.total} tests ({self.done * 100 // self.total} %)"
        return f"{share}, {self.failed} failed, {time.monotonic() - self.start:.0f} s"


def run(arguments: list[str], out: TextIO) -> int:
    """pytest with the line in place of its own progress; the exit status."""
    return pytest.main(["-q", "-o", "console_output_style=classic", *arguments], [Line(out)])


if __name__ == "__main__":
    status = run(sys.argv[1:], sys.stdout)
    sys.stdout.flush()
    os._exit(status)  # Python would let Triton print what it did not free
