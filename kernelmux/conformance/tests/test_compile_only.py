"""The compile-only check finds spills, too much shared memory and kernels that do not compile, on AMD GPUs as well."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from kernelmux import emulator
from kernelmux.conformance.checks import compile_only
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.judging import resource_budgets
from kernelmux.conformance.judging.probe import Probe
from kernelmux.conformance.judging.resource_budgets import AmdBudget
from kernelmux.conformance.options import Options
from kernelmux.conformance.session.execute import Outcome, execute
from kernelmux.conformance.session.plan import Item
from kernelmux.emulator import amdgcn, launch_log, nvrtc
from kernelmux.emulator.compilers import triton_foreign
from kernelmux.emulator.launch_log import CompiledModule, Launch, Recipe

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


def compiled(options: tuple[str, ...], arch: str) -> CompiledModule:
    found = nvrtc.compile_cubin(SOURCE, options, arch, "tail.cu")
    return CompiledModule(found.image, found.log)


def outcome(monkeypatch: pytest.MonkeyPatch, shared: int, *options: str) -> Outcome:
    """What the check says of a launch of that kernel."""
    launch = Launch("tail", (1, 1, 1), (128, 1, 1), shared, Recipe(options, partial(compiled, options)))
    return checked(monkeypatch, launch)


def checked(monkeypatch: pytest.MonkeyPatch, launch: Launch) -> Outcome:
    """What the check says of a variant that launches this and nothing else."""

    def launches(probe: Probe, asked: list[Trial], arch: str) -> list[tuple[Trial, Launch]]:
        return [(probe.sample(1)[0], launch)]

    monkeypatch.setattr(compile_only, "_launches", launches)
    return execute(Item("softmax", "torch_ref", "exact", "compile_only"), Options())


def test_a_lean_kernel_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome(monkeypatch, 0, "-DBROKEN=").status == "passed"


def test_spills_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "bytes of stores" in outcome(monkeypatch, 0, "-DBROKEN=", "--maxrregcount=32").text


def test_shared_memory_is_measured_against_the_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    text = outcome(monkeypatch, 200 * 1024, "-DBROKEN=").text
    assert "sm_75 has 65536 per block" in text and "sm_120a" in text and "sm_90a" not in text


def test_a_kernel_that_does_not_compile_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "CompileError" in outcome(monkeypatch, 0, "-DBROKEN=nonsense;").text


def test_the_recorder_knows_how_a_kernel_was_compiled() -> None:
    ptx = nvrtc.compile_ptx(SOURCE, ("-DBROKEN=",), "sm_90a", "tail.cu")
    with launch_log.recorder() as launches:
        launch_log.note(ptx, "tail", (1, 1, 1), (32, 1, 1), 0)
    assert launches[0].recipe is not None
    assert launches[0].recipe.compile("sm_80").image[:4] == b"\x7fELF"


# --- AMD GPUs -----------------------------------------------------------------------------------------------

PTX = tl.constexpr("cvt.rna.tf32.f32 $0, $1;")


@triton.jit
def held_kernel(x, y, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """All of a block is in registers until its maximum is known."""
    at = tl.arange(0, BLOCK)
    held = tl.load(x + at)
    if KIND == "ptx":
        held = tl.inline_asm_elementwise(PTX, "=r,r", [held], dtype=tl.float32, is_pure=True, pack=1)
    if KIND == "rounded":
        held = libdevice.mul_rn(held, held)
    tl.store(y + at, held - tl.max(held))


def held(kind: str = "plain", block: int = 1024) -> Launch:
    """A launch of that kernel with 16 warps, which are 1,024 lanes on an AMD GPU and leave 128 registers to each."""
    x = torch.zeros(block)
    with emulator.triton_active(), emulator.recorder(run=False) as launches:
        held_kernel[(1,)](x, torch.empty_like(x), KIND=kind, BLOCK=block, num_warps=16)
    launch: Launch
    (launch,) = launches
    return launch


def test_a_triton_kernel_is_compiled_for_amd_gpus_too(monkeypatch: pytest.MonkeyPatch) -> None:
    found = checked(monkeypatch, held())
    assert found.status == "passed"
    archs = ("gfx942", "gfx950")
    assert [r.note for r in found.records if "gfx" in r.note] == [f"held_kernel for {arch}" for arch in archs]


def test_cuda_is_compiled_for_no_amd_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any("gfx" in r.note for r in outcome(monkeypatch, 0, "-DBROKEN=").records)


@pytest.mark.parametrize(("kind", "reason"), [("ptx", "inline PTX: cvt.rna.tf32.f32"), ("rounded", "libdevice.mul_rn")])
def test_what_only_nvidia_has_is_skipped_and_named(monkeypatch: pytest.MonkeyPatch, kind: str, reason: str) -> None:
    found = [r for r in checked(monkeypatch, held(kind)).records if "gfx" in r.note]
    assert len(found) == 2 and all(r.status == "skipped" and reason in r.text for r in found)


def test_a_kernel_that_fails_for_no_known_reason_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_foreign, "reasons", lambda ir, arch: [])
    found = checked(monkeypatch, held("rounded"))
    assert found.status == "failed" and "mul_rn" in found.text


def test_scratch_memory_on_an_amd_gpu_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_budgets, "archs", lambda: [])
    monkeypatch.setattr(compile_only, "_examine", lambda judge, launch, arch: judge.require(True, ""))
    assert "bytes of scratch, the budget is 0" in checked(monkeypatch, held(block=2**17)).text


def test_registers_on_an_amd_gpu_have_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        resource_budgets, "amd_budget", lambda *_: AmdBudget(vgprs=1, scratch=0, lds=65536, threads=1024)
    )
    assert "VGPRs, the budget is 1" in checked(monkeypatch, held()).text


def test_what_an_amd_gpu_has_not_is_found_unless_it_is_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    small = dict.fromkeys(amdgcn.GPUS, amdgcn.ComputeUnit(lds=16))
    monkeypatch.setattr(amdgcn, "GPUS", small)
    assert "bytes of LDS, gfx942 has 16 per workgroup" in checked(monkeypatch, held()).text
    monkeypatch.setattr(
        resource_budgets, "amd_budget", lambda *_: AmdBudget(512, 0, lds=65536, threads=1024, reason="known")
    )
    found = checked(monkeypatch, held())
    assert found.status == "passed" and any("known" in remark for r in found.records for remark in r.remarks)
