"""The pytest plugin of a worker process: holds the harness and describes the machine to pytest-benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernelmux.perf.rows import machine
from kernelmux.perf.rows.codec import encode
from kernelmux.perf.session.harness import Harness
from kernelmux.perf.timing.clock import VirtualClock

CLOCK = VirtualClock()
FOLDER = "--kernelmux-perf"
_HARNESS = pytest.StashKey[Harness]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(FOLDER, metavar="FOLDER", help="folder with the plan of this worker")


def harness_of(config: pytest.Config) -> Harness:
    """The harness of this process."""
    if _HARNESS not in config.stash:
        config.stash[_HARNESS] = Harness(Path(config.getoption(FOLDER)), CLOCK)
    return config.stash[_HARNESS]


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.items:
        harness_of(session.config).start()


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    machine_info["kernelmux"] = encode(machine.describe(harness_of(config).options.device))
