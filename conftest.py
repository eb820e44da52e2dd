"""What the tests of all parts share."""

import gc

import pytest


@pytest.fixture(autouse=True, scope="module")
def frozen() -> None:
    """A full collection looks at what the tests of one file have made: many ask for one, and a run of pytest for five."""
    gc.collect(1)
    gc.freeze()
