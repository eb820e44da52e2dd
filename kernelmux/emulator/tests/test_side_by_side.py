"""A launch that happens while another one of the same module runs, on a variable of the module."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmux.emulator import checks, compile_ptx, load
from kernelmux.emulator.tests.launching import needs_nvrtc
from kernelmux.emulator.tracing import watch_hook

# All launches write the same values to an array that they share, each by other threads.
TEXT = """__device__ float stage[64];
extern "C" __global__ void own(const float* x, float* y, int turn) {
  int i = (threadIdx.x + turn) % 64;
  stage[i] = x[i];
  asm volatile("" ::: "memory");
  y[i] = 2 * stage[i];
}"""


class Between:
    """Calls a function once, when the first launch that it sees has stored something."""

    def __init__(self, then: Any) -> None:
        self.then, self.stored, self.done = then, False, False

    def begin(self, *launch: Any) -> Between:
        return self

    def of(self, flow: Any) -> Between:
        self.steps = flow.steps
        return self

    def step(self, pc: int, group: Any) -> None:
        if self.stored and not self.done:
            self.done = True
            with watch_hook.watching(None):  # type: ignore[arg-type]
                self.then()
        self.stored |= self.steps[pc].name == "st"

    def access(self, *inputs: Any) -> None: ...

    def branch(self, *inputs: Any) -> None: ...

    def finish(self) -> None: ...


@needs_nvrtc
def test_launches_have_records_of_their_own() -> None:
    module = load(compile_ptx(TEXT, arch="sm_90a", filename="stage.cu"))
    x = np.arange(64, dtype=np.float32)

    def run(turn: int) -> None:
        y = np.empty(64, np.float32)
        module.kernel("own").launch(1, 64, (x, y, np.int32(turn)))
        assert (y == 2 * x).all()

    between = Between(lambda: run(5))
    with checks("full"), watch_hook.watching(between):
        run(0)
    assert between.done
