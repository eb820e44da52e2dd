"""Launches of one module in several threads at once, on variables of the module."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from kernelmux.emulator import checks, compile_ptx, load
from kernelmux.emulator.tests.launching import needs_nvrtc

# All launches write the same values to an array that they share, each by other threads.
TEXT = """__device__ float stage[64];
extern "C" __global__ void own(const float* x, float* y, int turn) {
  int i = (threadIdx.x + turn) % 64;
  for (int step = 0; step < 8; ++step) {
    stage[i] = x[i];
    y[i] = stage[i];
  }
}"""


@pytest.fixture
def often() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@needs_nvrtc
def test_launches_side_by_side_have_records_of_their_own(often: None) -> None:
    module = load(compile_ptx(TEXT, arch="sm_90a", filename="stage.cu"))
    errors: list[BaseException] = []

    x = np.arange(64, dtype=np.float32)

    def work(turn: int) -> None:
        y = np.empty(64, np.float32)
        try:
            for _ in range(30):
                with checks("full"):
                    module.kernel("own").launch(1, 64, (x, y, np.int32(turn)))
                assert (y == x).all()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(turn,)) for turn in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
