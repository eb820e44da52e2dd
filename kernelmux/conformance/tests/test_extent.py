"""Long axes of kernels whose blocks walk: longer ones are asked where shorter ones tell that their emulation ends."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernelmux.conformance.checks import extent
from kernelmux.conformance.variations import large_tensors
from kernelmux.conformance.variations.resize import AxisName
from kernelmux.registry import catalog


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


@pytest.mark.parametrize(("blocks", "length"), [(0, 1031), (132, 1187), (264, 1319), (66, 1121)])
def test_the_last_part_of_blocks_that_walk_is_of_the_last_block_but_one(blocks, length):
    """In turns, of which every other one may go from behind."""
    assert extent._beyond(1031, blocks) == length
    if blocks:
        turn, place = divmod(length - 1, blocks)
        assert turn % 2 == 0
        assert place == blocks - 2


@pytest.mark.parametrize(
    ("counted", "found"),
    [
        ([[132], [132]], 132),
        ([[264, 1], [264, 1]], 264),
        ([[132], [264]], 0),  # one for each part
        ([[8], [512]], 0),
        ([[2], [2]], 0),  # of an axis that no grid counts
        ([[132], []], 0),  # no such call
    ],
)
def test_blocks_that_stay_are_as_many_for_any_length(monkeypatch, counted, found):
    given = iter(counted)
    monkeypatch.setattr(extent, "_first", lambda *_: "a call")
    monkeypatch.setattr(extent.some_blocks, "blocks", lambda *_: next(given))
    nothing: Any = None
    assert extent._blocks_that_stay(nothing, nothing, nothing, nothing) == found


@pytest.mark.parametrize(
    ("grids", "threads", "turns"),
    [
        ([132], 384, 4 * extent.FULLER),  # the emulator runs 42 of these blocks side by side
        ([1031, 132], 384, 4 * extent.FULLER),
        ([65537], 128, 513 / extent.COMPILED),  # none of which has more to do
        ([8], 128, 0.0),
        ([], 128, 0.0),
    ],
)
def test_how_much_longer_all_blocks_take_than_a_few(grids, threads, turns):
    launches: Any = [SimpleNamespace(grid=(n, 1, 1), block=(threads, 1, 1)) for n in grids]
    assert extent._turn_count(launches) == turns


@pytest.mark.parametrize(
    ("op", "axes", "found"),
    [
        ("attention", "B", {0: 0, 1: 0}),
        ("attention", "GH", {0: 1, 1: 1}),
        ("attention_backward", "HG", {0: 1, 1: 1, 2: 1}),
        ("attention", "MN", {}),
        ("attention", "H", {}),  # heads share others then
        ("matmul", "MN", {}),
        ("matmul", "MK", {}),
    ],
)
def test_slices_along_axes_that_grow_together(op, axes, found):
    spec = catalog.spec(op)
    case = spec.case("q=2x4x3x8 k=2x2x5x8 v=2x2x5x8" if op == "attention" else "a=3x4 b=4x5")
    if op == "attention_backward":
        case = spec.case("grad_out=2x4x3x8 q=2x4x3x8 k=2x2x5x8 v=2x2x5x8 y=2x4x3x8 lse=2x4x3")
    names = [AxisName(axis) for axis in axes]
    assert large_tensors.apart(spec, case, names, torch.float32) == found
