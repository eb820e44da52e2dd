"""The race detector against the definition, on random accesses: what it reports is a race, and it finds every one."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmux.emulator import EmulatorError
from kernelmux.emulator.tests.launching import launch, needs_nvrtc, source

pytestmark = needs_nvrtc

THREADS = 64
READ, WRITE, BARRIER, WARP_BARRIER = range(4)

# A few threads of both warps access a few places, so that they meet often.
threads = st.sampled_from([0, 1, 5, 31, 32, 40, 63])
accesses = st.dictionaries(threads, st.integers(0, 3), max_size=3)
steps = st.lists(st.tuples(st.sampled_from([READ, WRITE, WRITE, BARRIER, WARP_BARRIER]), accesses), max_size=9)


def racing(plan: list[tuple[int, dict[int, int]]]) -> bool:
    """Two accesses of different threads to one place, one of them a write, with no barrier between them."""
    done: list[tuple[int, int, int, bool]] = []  # step, thread, place, write
    for i, (kind, places) in enumerate(plan):
        if kind == BARRIER:
            done.clear()
        if kind in (READ, WRITE):
            done += [(i, thread, place, kind == WRITE) for thread, place in places.items()]
        for (i1, t1, p1, w1), (i2, t2, p2, w2) in combinations(done, 2):
            same_warp = t1 // 32 == t2 // 32
            ordered = same_warp and any(plan[j][0] == WARP_BARRIER for j in range(i1, i2))
            if t1 != t2 and p1 == p2 and (w1 or w2) and not ordered:
                return True
    return False


def table(plan: list[tuple[int, dict[int, int]]], rows: int) -> tuple[np.ndarray, np.ndarray]:
    """What the kernels read: the kinds of the steps, and for each step the place of every thread."""
    kinds, places = np.full(rows, BARRIER, np.int32), np.full((rows, THREADS), -1, np.int32)
    for i, (kind, where) in enumerate(plan):
        kinds[i] = kind
        for thread, place in where.items():
            places[i, thread] = place
    return kinds, places


def run(kernel: str, plan: list[tuple[int, dict[int, int]]], mode: str) -> None:
    kinds, places = table(plan, max(len(plan), 1))
    out = np.zeros(THREADS, np.int32 if kernel == "words" else np.int16)
    launch(source("accesses"), kernel, 1, THREADS, kinds, places, out, np.int32(len(plan)), mode=mode)


@pytest.mark.parametrize("kernel", ["words", "halves"])
@settings(max_examples=60, deadline=None)
@given(plan=steps)
def test_verdicts(kernel: str, plan: list[tuple[int, dict[int, int]]]) -> None:
    run(kernel, plan, "fast")
    if racing(plan):
        with pytest.raises(EmulatorError, match="race"):
            run(kernel, plan, "full")
    else:
        run(kernel, plan, "full")


@settings(max_examples=60, deadline=None)
@given(plans=st.lists(steps, min_size=2, max_size=3), repeats=st.integers(1, 3))
def test_blocks_of_their_own_pace(plans: list[list[tuple[int, dict[int, int]]]], repeats: int) -> None:
    """Barriers of one block say nothing about another, and what a block did long ago is not forgotten."""
    plans = [plan * (repeats if i else 1) for i, plan in enumerate(plans)]
    most = max(1, *map(len, plans))
    kinds, places = map(np.stack, zip(*(table(plan, most) for plan in plans), strict=True))
    counts, out = np.array([*map(len, plans)], np.int32), np.zeros((len(plans), THREADS), np.int32)
    arguments = (kinds, places, out, counts, np.int32(most))
    if any(map(racing, plans)):
        with pytest.raises(EmulatorError, match="race"):
            launch(source("accesses"), "words_of_blocks", len(plans), THREADS, *arguments, mode="full")
    else:
        launch(source("accesses"), "words_of_blocks", len(plans), THREADS, *arguments, mode="full")


SAME_PLACE = """extern "C" __global__ void meet(const {t}* x, {t}* y) {{ y[0] = x[threadIdx.x]; }}"""


@pytest.mark.parametrize(
    ("kind", "first", "second", "alike"),
    [
        (np.uint32, 0x7FC00000, 0xFFFFFFFF, True),  # NaN of float32
        (np.uint32, 0x7FC00000, 0x7F800000, False),  # NaN and infinity
        (np.uint32, 0x7E003C00, 0x7FFF3C00, True),  # a pair of halves, one of them NaN
        (np.uint32, 0x7E003C00, 0x7FFF3C01, False),
        (np.uint64, 0x7FF8000000000000, 0x7FF8000000000001, True),
        (np.uint16, 0x7E00, 0xFFFF, True),
        (np.uint16, 0x3C00, 0x3C01, False),
        (np.uint8, 0x7F, 0xFF, False),
    ],
)
def test_all_nan_are_the_same_value(kind: type[np.unsignedinteger], first: int, second: int, alike: bool) -> None:
    """Two threads that write NaN to one place agree: a GPU has one NaN where numpy has several."""
    x, y = np.array([first] * 31 + [second], kind), np.zeros(1, kind)
    name = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}[x.itemsize]
    text = SAME_PLACE.format(t=name)
    if alike:
        launch(text, "meet", 1, 32, x, y, mode="full")
        return
    with pytest.raises(EmulatorError, match="write different values"):
        launch(text, "meet", 1, 32, x, y, mode="full")


@pytest.mark.parametrize("readers", [0, 1, 3])
def test_a_reader_of_another_block_is_not_forgotten(readers: int) -> None:
    """Block 1 read a place long ago; block 0 has read it since, behind barriers, and then writes there."""
    later = "".join(f"if (threadIdx.x == {i}) y[{i}] = x[0];\n__syncthreads();\n" for i in range(1, readers + 1))
    text = f"""extern "C" __global__ void late(float* x, float* y) {{
      if (blockIdx.x == 1 && threadIdx.x == 0) y[40] = x[0];
      __syncthreads();
      if (blockIdx.x == 0) {{ {later} if (threadIdx.x == 9) x[0] = 7.f; }}
    }}"""
    x, y = np.ones(1, np.float32), np.zeros(64, np.float32)
    with pytest.raises(EmulatorError, match="race"):
        launch(text, "late", 2, 32, x, y, mode="full")
