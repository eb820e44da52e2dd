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


def run(kernel: str, plan: list[tuple[int, dict[int, int]]], mode: str) -> None:
    kinds = np.array([kind for kind, _ in plan] or [BARRIER], np.int32)
    places = np.full((len(kinds), THREADS), -1, np.int32)
    for i, (_, where) in enumerate(plan):
        for thread, place in where.items():
            places[i, thread] = place
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
