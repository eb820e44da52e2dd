"""Warp operations against their definitions, lane by lane; in whole warps, in parts of them, and in branches."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmux.emulator import EmulatorError
from kernelmux.emulator.tests.launching import launch, needs_nvrtc
from kernelmux.emulator.tests.single import run

EVERY = 0xFFFFFFFF


def source_lane(mode: str, lane: int, operand: int, clamp: int) -> tuple[int, bool]:
    """Where shfl.sync reads from (PTX ISA, shfl.sync), and whether that is in range."""
    operand, bound, segment = operand & 31, clamp & 31, clamp >> 8 & 31
    highest, lowest = (lane & segment) | (bound & ~segment & 31), lane & segment
    if mode == "up":
        source = lane - operand
        inside = source >= highest
    else:
        source = {"down": lane + operand, "bfly": lane ^ operand, "idx": lowest | (operand & ~segment & 31)}[mode]
        inside = source <= highest
    return (source if inside else lane), inside


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@settings(max_examples=25, deadline=None)
@given(operand=st.integers(0, 31), width=st.sampled_from([2, 4, 8, 16, 32]))
def test_shuffle(mode: str, operand: int, width: int) -> None:
    clamp = (32 - width) << 8 | (0 if mode == "up" else 31)
    values = np.arange(64, dtype=np.uint32) * 3 + 1
    code = f"shfl.sync.{mode}.b32 %d0, %a0, {operand}, {clamp}, -1;"
    code_inside = f"{{.reg .b32 %v; shfl.sync.{mode}.b32 %v|%d0, %a0, {operand}, {clamp}, -1;}}"
    got, inside = whole(code, "b32", values), whole(code_inside, "pred", values)
    for thread in range(64):
        source, ok = source_lane(mode, thread % 32, operand, clamp)
        assert got[thread] == values[thread // 32 * 32 + source] and bool(inside[thread]) == ok


def whole(code: str, result: str, values: Any) -> np.ndarray:
    """Many lanes only: a lane alone cannot take part with the full mask."""
    from kernelmux.emulator.tests.single import BITS, kernel

    out = np.zeros(len(values), BITS[result])
    kernel(code, result, ("b32",)).launch(1, len(values), [np.asarray(values, np.uint32), out])
    return out


@settings(max_examples=20, deadline=None)
@given(lanes=st.lists(st.integers(0, 31), min_size=32, max_size=32))
def test_shuffle_with_an_index_per_lane(lanes: list[int]) -> None:
    got = whole("{.reg .b32 %s; and.b32 %s, %a0, 31; shfl.sync.idx.b32 %d0, %a0, %s, 31, -1;}", "b32", lanes)
    assert got.tolist() == [lanes[lane] for lane in lanes]


VOTES: dict[str, Callable[[list[bool]], int]] = {
    "all": lambda p: int(all(p)),
    "any": lambda p: int(any(p)),
    "uni": lambda p: int(len(set(p)) == 1),
    "ballot": lambda p: sum(v << i for i, v in enumerate(p)),
}


@pytest.mark.parametrize("mode", VOTES)
@settings(max_examples=15, deadline=None)
@given(values=st.one_of(st.lists(st.integers(0, 1), min_size=64, max_size=64), st.sampled_from([[0] * 64, [1] * 64])))
def test_vote(mode: str, values: list[int]) -> None:
    result, kind = ("b32", "b32") if mode == "ballot" else ("pred", "pred")
    got = whole(f"setp.ne.u32 %p, %a0, 0; vote.sync.{mode}.{kind} %d0, %p, -1;", result, values)
    for warp in (0, 32):
        assert set(got[warp : warp + 32].tolist()) == {VOTES[mode]([bool(v) for v in values[warp : warp + 32]])}


REDUCTIONS: dict[str, Callable[[list[int]], int]] = {
    "add.u32": sum,
    "min.u32": min,
    "max.u32": max,
    "max.s32": lambda v: max(v, key=lambda x: x - (1 << 32) if x >> 31 else x),
    "and.b32": lambda v: int(np.bitwise_and.reduce(np.array(v, np.uint64))),
    "xor.b32": lambda v: int(np.bitwise_xor.reduce(np.array(v, np.uint64))),
}


@pytest.mark.parametrize("opcode", REDUCTIONS)
@settings(max_examples=8, deadline=None)
@given(values=st.lists(st.integers(0, EVERY), min_size=64, max_size=64))
def test_redux(opcode: str, values: list[int]) -> None:
    got = whole(f"redux.sync.{opcode} %d0, %a0, -1;", "b32", values)
    for warp in (0, 32):
        assert set(got[warp : warp + 32].tolist()) == {REDUCTIONS[opcode](values[warp : warp + 32]) & EVERY}


@settings(max_examples=10, deadline=None)
@given(values=st.lists(st.integers(0, 3), min_size=64, max_size=64))
def test_match(values: list[int]) -> None:
    anyone = whole("match.any.sync.b32 %d0, %a0, -1;", "b32", values)
    everyone = whole("match.all.sync.b32 %d0|%p, %a0, -1;", "b32", values)
    for thread in range(64):
        warp = values[thread // 32 * 32 : thread // 32 * 32 + 32]
        same = sum((v == values[thread]) << i for i, v in enumerate(warp))
        assert anyone[thread] == same and everyone[thread] == (EVERY if len(set(warp)) == 1 else 0)


def test_elect_and_active_mask() -> None:
    values = np.zeros(64, np.uint32)
    assert whole("{.reg .b32 %v; elect.sync %v|%d0, -1;}", "pred", values).tolist() == ([1] + [0] * 31) * 2
    assert set(whole("activemask.b32 %d0;", "b32", values).tolist()) == {EVERY}


def test_lane_masks() -> None:
    lanes = np.arange(32, dtype=np.uint64)
    below = (np.uint64(1) << lanes) - np.uint64(1)
    for name, want in {"lt": below, "eq": below + np.uint64(1), "ge": np.uint64(EVERY) - below}.items():
        got = run(f"mov.u32 %d0, %lanemask_{name};", "b32", ["b32"], [np.zeros(32)])
        np.testing.assert_array_equal(got, want)


PARTS = """extern "C" __global__ void k(const int* x, int* y) {{
    const int i = threadIdx.x, lane = i & 31;
    int v = x[i];
    {body}
    y[i] = v;
}}"""


def parts(body: str, x: np.ndarray) -> np.ndarray:
    y = np.zeros_like(x)
    launch(PARTS.format(body=body), "k", 1, len(x), x, y)
    return y


@needs_nvrtc
def test_masks_in_branches() -> None:
    """Each half of a warp exchanges by itself, in its own branch."""
    x = np.arange(64, dtype=np.int32)
    body = """if (lane < 16) v += __shfl_xor_sync(0x0000ffff, v, 1);
    else v = 100 * __reduce_add_sync(0xffff0000, v);"""
    got = parts(body, x)
    for thread in range(64):
        warp, lane = divmod(thread, 32)
        upper = sum(range(warp * 32 + 16, warp * 32 + 32))
        assert got[thread] == (x[thread] + (x[thread] ^ 1) if lane < 16 else 100 * upper)


@needs_nvrtc
def test_lanes_wait_for_one_another() -> None:
    """Both branches lead to one full shuffle in different places: a loop of different lengths before it."""
    x = np.arange(64, dtype=np.int32)
    got = parts("for (int j = 0; j < lane % 5; j++) v += j * x[(i + j) % 64];\nv = __shfl_sync(~0u, v, 4);", x)
    want = [sum(j * ((w + 4 + j) % 64) for j in range(4)) + w + 4 for w in (0, 32)]
    assert got.tolist() == [want[0]] * 32 + [want[1]] * 32


@needs_nvrtc
def test_two_masks_at_one_place() -> None:
    """The lanes of a warp come with two masks: even ones vote among themselves, odd ones too."""
    x = np.arange(64, dtype=np.int32)
    got = parts("const unsigned mask = lane & 1 ? 0xaaaaaaaa : 0x55555555;\nv = __reduce_max_sync(mask, v);", x)
    assert got.tolist() == [30, 31] * 16 + [62, 63] * 16
    got = parts("const unsigned mask = lane & 1 ? 0xaaaaaaaa : 0x55555555;\nv = __ballot_sync(mask, v % 3 == 0);", x)
    for thread in range(64):
        base, odd = thread // 32 * 32, thread & 1
        want = sum(((base + lane) % 3 == 0) << lane for lane in range(odd, 32, 2))
        assert np.uint32(got[thread]) == want


@needs_nvrtc
def test_a_block_that_is_no_multiple_of_32() -> None:
    x = np.arange(40, dtype=np.int32)
    got = parts("v = __shfl_xor_sync(lane < 8 && i >= 32 ? 0xff : ~0u, v, 1);", x)
    assert got.tolist() == [i ^ 1 for i in range(40)]
    with pytest.raises(EmulatorError, match="does not take part"):
        parts("v = __shfl_down_sync(~0u, v, 1);", x)
