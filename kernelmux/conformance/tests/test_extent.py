"""Long axes of kernels whose blocks walk: longer ones are asked where shorter ones tell that their emulation ends."""

from types import SimpleNamespace
from typing import Any

import pytest

from kernelmux.conformance.checks import extent


@pytest.mark.parametrize(
    ("each", "few", "asked", "left_out"),
    [
        (1e-6, True, [131, 1031, 65537], []),  # seconds for each place of the axis
        (1e-3, True, [131, 1031], [65537]),
        (1e-3, False, [131, 1031, 65537], []),  # more blocks, none of which has more to do
        (1e-2, True, [131], [1031, 65537]),
    ],
)
def test_a_longer_axis_is_asked_where_its_time_can_be_told(monkeypatch, each, few, asked, left_out):
    clock, long, skipped = [0.0], [], []

    def ask(probe, base, case, axis, length):
        long.append(length)
        clock[0] += each * length
        return True

    monkeypatch.setattr(extent, "_long", ask)
    monkeypatch.setattr(extent, "_few_blocks", lambda *_: few)
    monkeypatch.setattr(extent.time, "process_time", lambda: clock[0])
    probe: Any = SimpleNamespace(skip=lambda trial, reason: skipped.append(trial))
    base: Any = SimpleNamespace(changed=lambda note: note)
    case: Any = None
    axis: Any = "M"
    extent._ever_longer(probe, base, case, axis, (131, 1031, 65537))
    assert long == asked
    assert skipped == [f"M = {length}" for length in left_out]


def test_a_length_that_says_nothing_ends_the_axis(monkeypatch):
    long: list[int] = []

    def ask(probe, base, case, axis, length):
        long.append(length)
        return False

    monkeypatch.setattr(extent, "_long", ask)
    nothing: Any = None
    extent._ever_longer(nothing, nothing, nothing, nothing, (131, 1031))
    assert long == [131]
