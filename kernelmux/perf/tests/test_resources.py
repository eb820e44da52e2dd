"""What is said of kernels that are only compiled: a planted spill has a name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kernelmux import emulator
from kernelmux.emulator import launch_log, nvrtc
from kernelmux.emulator.launch_log import CompiledModule, Launch, Recipe
from kernelmux.perf.emulated import resources
from kernelmux.perf.record.run_file import KernelNeed
from kernelmux.perf.rows.options import PerfOptions

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
    def compiled(arch: str) -> CompiledModule:
        cubin = nvrtc.compile_cubin(source, arch=arch)
        return CompiledModule(cubin.image, cubin.log)

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


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nothing has been compiled, in this process or before."""
    monkeypatch.setenv("KERNELMUX_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(nvrtc, "_memory", {})
    emulator.cache_folder.cache_clear()
    yield
    emulator.cache_folder.cache_clear()


@pytest.mark.usefixtures("empty_cache")
def test_ptx_and_machine_code_come_from_one_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    made, compiling = list[str](), nvrtc._compile

    def compiled(*arguments: Any) -> Any:
        made.append(arguments[0])
        return compiling(*arguments)

    def launches(*arguments: Any) -> list[Launch]:
        return [Launch("held", (1, 1, 1), (1024, 1, 1), 0, launch_log.recipe(nvrtc.compile_ptx(SPILLING)))]

    monkeypatch.setattr(nvrtc, "_compile", compiled)
    monkeypatch.setattr(resources, "launches", launches)
    (found,) = resources.needs(resources.InspectedVariant("square", "cuda", "vectorized"), PerfOptions())
    assert found.registers > 0 and made == [SPILLING]


def test_variants_are_compiled_side_by_side_and_reported_in_their_order() -> None:
    pytest.importorskip("triton")
    todo = [resources.InspectedVariant("softmax", "cuda", "", broken="ImportError: no")]
    todo += [resources.InspectedVariant("softmax", "triton", "resident")]
    with resources._side_by_side(todo, PerfOptions()) as futures:
        found = [future.result() for future in futures]
    assert found == [resources.needs(candidate, PerfOptions()) for candidate in todo]


def test_a_compiler_that_kills_its_process_is_a_row_with_an_error_and_hurts_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resources, "needs", _killing)  # which the children have as well
    todo = [resources.InspectedVariant("softmax", "triton", name) for name in ("resident", "killing", "blocked")]
    with resources._side_by_side(todo, PerfOptions()) as futures:
        found = [need for pair in zip(todo, futures, strict=True) for need in resources._result(*pair, PerfOptions())]
    assert [(need.label, need.error) for need in found] == [
        ("triton/resident", ""),
        ("triton/killing", "a compiler killed its process"),
        ("triton/blocked", ""),
    ]


def _killing(candidate: resources.InspectedVariant, options: PerfOptions) -> list[KernelNeed]:
    if candidate.variant == "killing":
        os._exit(1)
    return [KernelNeed(candidate.op, candidate.label, "", "")]
