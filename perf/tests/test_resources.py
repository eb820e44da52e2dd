"""What is said of kernels that are only compiled: a planted spill has a name."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from kernelmux.emulator import nvrtc
from kernelmux.emulator.compilers import nvrtc as compiler
from kernelmux.emulator.compilers.launch_log import Compiled, Launch, Recipe
from kernelmux.perf.emulated import resources
from kernelmux.perf.results import KernelNeed

pytestmark = pytest.mark.skipif(nvrtc.unavailable() is not None, reason=str(nvrtc.unavailable()))

# 96 values at a time, and a launch bound that leaves 32 registers.
SPILLING = """
extern "C" __global__ void __launch_bounds__(1024, 2) held(float* y, int n) {
  float a[96];
#pragma unroll
  for (int i = 0; i < 96; i++) a[i] = y[i * n];
#pragma unroll
  for (int i = 0; i < 96; i++) y[i * n] = a[95 - i] * a[i];
}
"""


def need(source: str, threads: int) -> KernelNeed:
    def compiled(arch: str) -> Compiled:
        cubin = compiler.compile_cubin(source, arch=arch)
        return Compiled(cubin.image, cubin.log)

    launch = Launch("held", (1, 1, 1), (threads, 1, 1), 0, Recipe(source, compiled))
    return KernelNeed("planted", "cuda/held", "x=1", "bf16", **resources._examined(launch))


def printed(kernel: KernelNeed) -> str:
    file = StringIO()
    resources.show(Console(file=file, width=160), [kernel])
    return " ".join(file.getvalue().split())


def test_a_planted_spill_is_named() -> None:
    found = need(SPILLING, 1024)
    assert found.spills > 0
    assert f"-> planted cuda/held held: spills {found.spills} bytes per thread to local memory" in printed(found)


def test_a_kernel_without_spills_has_no_remark() -> None:
    assert "->" not in printed(need(SPILLING.replace("__launch_bounds__(1024, 2)", "__launch_bounds__(256)"), 256))
