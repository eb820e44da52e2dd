"""What pytest collects in a worker process: one test per row, timed by pytest-benchmark on the virtual clock."""

from __future__ import annotations

from typing import Any

import pytest

from kernelmux.perf.planning.plan import Row
from kernelmux.perf.session.pytest_plugin import CLOCK, harness_of


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    rows = [row for row in harness_of(metafunc.config).rows if not row.problem]
    metafunc.parametrize("row", rows, ids=[row.id for row in rows])


@pytest.mark.benchmark(timer=CLOCK)
def test_row(row: Row, benchmark: Any, request: pytest.FixtureRequest) -> None:
    harness = harness_of(request.config)
    try:
        harness.run(row, benchmark)
    finally:
        if harness.lost:
            request.session.shouldstop = "the GPU no longer answers"
