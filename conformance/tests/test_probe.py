"""What a probe sets for the calls that it makes."""

import pytest

from kernelmux.conformance.options import Options
from kernelmux.conformance.probe import Probe
from kernelmux.emulator.settings import current_checks, current_time_limit
from kernelmux.registry import backend as registered
from kernelmux.registry import catalog


@pytest.mark.parametrize(("tier", "seconds"), [("smoke", 60), ("ci", 60), ("full", 600), ("huge", 3600)])
def test_emulated_calls_are_checked_and_have_time(tier: str, seconds: float) -> None:
    """Large cases take longer than a launch may take otherwise."""
    implementation = registered.variants("cuda", "add")["scalar"]
    probe = Probe(catalog.spec("add"), "accuracy", "cuda", "scalar", implementation, Options(tier=tier, device="cpu"))
    with probe.environment():
        assert (current_checks(), current_time_limit()) == ("full", seconds)
    assert current_time_limit() == 60
