"""Fixtures for the tests of the suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernelmux.conformance import mutation


@pytest.fixture(scope="package")
def mutants() -> Iterator[None]:
    """The package of broken kernels as a registered backend."""
    with mutation.registration():
        yield
