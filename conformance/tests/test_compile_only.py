"""The compile-only check finds spills, too much shared memory and kernels that do not compile."""

from __future__ import annotations

from functools import partial

import pytest

from kernelmux.conformance.checks import compile_only
from kernelmux.conformance.execute import Outcome, execute
from kernelmux.conformance.options import Options
from kernelmux.conformance.plan import Item
from kernelmux.conformance.probe import Probe
from kernelmux.conformance.trials import Trial
from kernelmux.emulator import nvrtc
from kernelmux.emulator.compilers import launch_log
from kernelmux.emulator.compilers.launch_log import Compiled, Launch, Recipe

pytestmark = pytest.mark.skipif(nvrtc.unavailable() is not None, reason="needs NVRTC")

SOURCE = """
extern "C" __global__ void tail(float* x, int n) {
    float held[96];
    #pragma unroll
    for (int i = 0; i < 96; ++i) held[i] = x[i * n];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 96; ++i) x[i * n + 1] = held[i] * held[95 - i];
    BROKEN
}
"""


def compiled(options: tuple[str, ...], arch: str) -> Compiled:
    found = nvrtc.compile_cubin(SOURCE, options, arch, "tail.cu")
    return Compiled(found.image, found.log)


def outcome(monkeypatch: pytest.MonkeyPatch, shared: int, *options: str) -> Outcome:
    """What the check says of a launch of that kernel."""
    launch = Launch("tail", (1, 1, 1), (128, 1, 1), shared, Recipe(options, partial(compiled, options)))

    def launches(probe: Probe) -> list[tuple[Trial, Launch]]:
        return [(probe.sample(1)[0], launch)]

    monkeypatch.setattr(compile_only, "_launches", launches)
    return execute(Item("softmax", "torch_ref", "eager", "compile_only"), Options())


def test_a_lean_kernel_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome(monkeypatch, 0, "-DBROKEN=").status == "passed"


def test_spills_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "bytes of stores" in outcome(monkeypatch, 0, "-DBROKEN=", "--maxrregcount=32").text


def test_shared_memory_is_measured_against_the_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    text = outcome(monkeypatch, 200 * 1024, "-DBROKEN=").text
    assert "sm_80 has 166912 per block" in text and "sm_90a" not in text


def test_a_kernel_that_does_not_compile_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "CompileError" in outcome(monkeypatch, 0, "-DBROKEN=nonsense;").text


def test_the_recorder_knows_how_a_kernel_was_compiled() -> None:
    ptx = nvrtc.compile_ptx(SOURCE, ("-DBROKEN=",), "sm_90a", "tail.cu")
    with launch_log.recorder() as launches:
        launch_log.note(ptx, "tail", (1, 1, 1), (32, 1, 1), 0)
    assert launches[0].recipe is not None
    assert launches[0].recipe.compile("sm_80").image[:4] == b"\x7fELF"
