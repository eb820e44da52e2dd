"""Fixtures of the Triton corpus."""

from collections.abc import Iterator

import pytest

from kernelmux.emulator import checks


@pytest.fixture(params=["sm_80", "sm_90", "sm_100"])
def arch(request: pytest.FixtureRequest) -> Iterator[str]:
    """The emulator as Triton's active device, compiling for one target after the other, with full checks."""
    triton = pytest.importorskip("triton")
    from kernelmux.emulator.compilers import triton_driver

    before = triton.runtime.driver._active
    triton_driver.activate()
    with triton_driver.target(request.param), checks("full"):
        yield request.param
    triton.runtime.driver._active = before
