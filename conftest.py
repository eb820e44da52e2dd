"""What the tests of all parts share."""

import atexit
import gc
import os
import sys
from collections.abc import Iterator

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """A process that runs tests for another ends at once: Python would let Triton print what it did not free.

    Times and tuned configurations of the user do not matter to tests.
    """
    os.environ["KERNELMUX_HOME"] = "/dev/null/no-home"
    if hasattr(config, "workerinput"):
        atexit.register(os._exit, 0)


@pytest.fixture(autouse=True, scope="module")
def frozen() -> None:
    """A full collection looks at what the tests of one file have made: many ask for one, and a run of pytest for five."""
    gc.collect(1)
    gc.freeze()


@pytest.fixture(autouse=True)
def candidates() -> Iterator[None]:
    """What a choice has cached of backends is forgotten around each test: many put others in their place."""
    forget_ladders()
    yield
    forget_ladders()


def forget_ladders() -> None:
    if lookup := sys.modules.get("kernelmux.registry.backend.lookup"):
        lookup.forget_ladders()
