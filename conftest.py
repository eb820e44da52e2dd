"""What the tests of all parts share."""

import atexit
import gc
import os

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
