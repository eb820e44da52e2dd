"""pytest in a worker process: it is started once, and runs a test for each row that the runner gives.

pytest-benchmark does the statistics, on a virtual clock. Each row brings its entry of pytest-benchmark's file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelmux.perf.planning.plan import Row
from kernelmux.perf.rows.codec import decode, encode
from kernelmux.perf.rows.options import from_dict
from kernelmux.perf.session.harness import Harness, Tell
from kernelmux.perf.timing.clock import VirtualClock

SUITE = Path(__file__).with_name("row_tests.py")
CLOCK = VirtualClock()
COMPILE, TIME = "compile", "time"  # what is to be done with a row
_ROW = pytest.StashKey[Row]()


def serve(setup: Any, items: Iterator[tuple[Any, float]], tell: Tell) -> None:
    """What a worker process runs (`runner.item.Serve`). setup: options, and formats of products with ceilings.

    An item is [COMPILE or TIME, row]. Its row: see `Harness.compile`; or the result, facts of the machine, and the file
    of pytest-benchmark with this one entry.
    """
    loop = RowLoop(Harness(from_dict(setup["options"]), tuple(setup["formats"]), CLOCK), items, tell)
    status = pytest.main(_words(), plugins=[loop])
    if loop.error is not None:
        raise loop.error
    if not loop.began:
        raise RuntimeError(f"pytest ended with status {int(status)} before the first row")


def _words() -> list[str]:
    # No file of settings but an empty one: the user's may lie above the current folder.
    own = ["-c", os.devnull, "--rootdir", str(SUITE.parent), "--import-mode=importlib", "--noconftest", "-W", "ignore"]
    # A folder that is there already, for pytest-benchmark makes the one it is given.
    engine = [f"--benchmark-storage=file://{SUITE.parent}", "--benchmark-disable-gc", "--benchmark-quiet"]
    return [str(SUITE), "-q", "-p", "no:cacheprovider", *own, *engine]


class RowLoop:
    """The plugin. began: pytest has come so far as to take rows; error: what ended it."""

    def __init__(self, harness: Harness, items: Iterator[tuple[Any, float]], tell: Tell) -> None:
        self.harness, self.items, self.tell = harness, items, tell
        self.began = False
        self.error: Exception | None = None
        self.head: dict[str, Any] = {}  # of pytest-benchmark's file

    @pytest.fixture
    def row(self, request: pytest.FixtureRequest) -> Row:
        """The row of a test."""
        row: Row = request.node.stash[_ROW]
        return row

    @pytest.fixture
    def harness_of_worker(self) -> Harness:
        return self.harness

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if not session.items:
            return None  # pytest says why
        self.began = True
        try:
            for (task, told), _ in self.items:
                row = decode(Row, told, "row")
                self.tell(
                    self.harness.compile(row) if task == COMPILE else self._timed(session, row), self.harness.lost
                )
        except Exception as error:
            self.error = error
        return True

    def _timed(self, session: pytest.Session, row: Row) -> dict[str, Any]:
        """Run the test of a row."""
        template: Any = session.items[0]  # what pytest has collected: it is never run, and keeps its module set up
        made = pytest.Function.from_parent(template.parent, name=f"test_row[{row.id}]", callobj=template.obj)
        made.stash[_ROW] = row
        self.harness.begin()
        made.ihook.pytest_runtest_protocol(item=made, nextitem=template)
        if (result := self.harness.taken()) is None:
            raise RuntimeError(f"pytest did not run the test of {row.id}: its log says why")
        return {"result": encode(result), **self.harness.facts, "benchmark": self._benchmark(session.config)}

    def _benchmark(self, config: pytest.Config) -> dict[str, Any] | None:
        """pytest-benchmark's file with the last row alone; None for one without times."""
        whole: Any = config
        benchmarks, hook = whole._benchmarksession.benchmarks, whole.hook
        if not benchmarks:
            return None
        if not self.head:
            self.head["machine_info"] = whole._benchmarksession.get_machine_info()
            self.head["commit_info"] = hook.pytest_benchmark_generate_commit_info(config=config)
        told = hook.pytest_benchmark_generate_json(
            config=config, benchmarks=[*benchmarks], include_data=True, **self.head
        )
        benchmarks.clear()
        return dict(told) if told["benchmarks"] else None

    def pytest_benchmark_update_machine_info(self, machine_info: dict[str, Any]) -> None:
        machine_info["kernelmux"] = self.harness.facts["machine"]
