"""What pytest collects in a worker process: the test of one row, timed by pytest-benchmark on the virtual clock."""

from __future__ import annotations

from typing import Any

import pytest

from kernelmux.perf.planning.plan import Row
from kernelmux.perf.session.harness import Harness
from kernelmux.perf.session.pytest_plugin import CLOCK


@pytest.mark.benchmark(timer=CLOCK)
def test_row(row: Row, benchmark: Any, harness_of_worker: Harness) -> None:
    harness_of_worker.run(row, benchmark)
