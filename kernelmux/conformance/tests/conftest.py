"""Fixtures for the tests of the suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernelmux.candidate import global_state
from kernelmux.conformance.session import mutation


@pytest.fixture
def mutants() -> Iterator[None]:
    """The families of broken kernels as registered backends; for one test, as others ask every backend there is.

    Some set flags of torch and leave them: those are put back behind the test.
    """
    with global_state.flags_kept(), mutation.registration():
        yield
