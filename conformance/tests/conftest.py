"""Fixtures for the tests of the suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernelmux.conformance import ambience, mutation


@pytest.fixture
def mutants() -> Iterator[None]:
    """The families of broken kernels as registered backends; for one test, as others ask every backend there is.

    Some set flags of torch and leave them: those are put back behind the test.
    """
    flags = [(home, name, getattr(home, name)) for home, name in ambience.FLAGS]
    precision = torch.get_float32_matmul_precision()
    with mutation.registration():
        yield
    for home, name, value in flags:
        setattr(home, name, value)
    torch.set_float32_matmul_precision(precision)
