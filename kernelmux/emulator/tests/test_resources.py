"""Resources read from cubins against the log of ptxas, and occupancy against worked examples."""

import re

import pytest

from kernelmux.emulator import nvrtc
from kernelmux.emulator.resources import Resources, multiprocessor, occupancy, resources

needs_nvrtc = pytest.mark.skipif(nvrtc.unavailable() is not None, reason=str(nvrtc.unavailable()))

TWO_KERNELS = """
extern "C" __global__ void reversed(const float* x, float* y) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  asm volatile("bar.sync 3, 64;");
  y[threadIdx.x] = tile[63 - threadIdx.x];
}
extern "C" __global__ void __launch_bounds__(1024, 2) spilling(float* y, int n) {
  float a[96];
#pragma unroll
  for (int i = 0; i < 96; i++) a[i] = y[i * n];
#pragma unroll
  for (int i = 0; i < 96; i++) y[i * n] = a[95 - i] * a[i];
}
"""
LOG = (
    r"entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores.*?"
    r"Used (\d+) registers, used (\d+) barriers(?:.*?(\d+) bytes smem)?"
)


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_the_image_says_what_ptxas_logged(arch: str) -> None:
    cubin = nvrtc.compile_cubin(TWO_KERNELS, arch=arch)
    found = resources(cubin.image, cubin.log)
    logged = {m[0]: m[1:] for line in cubin.log.split("Compile time") for m in re.findall(LOG, line, re.DOTALL)}
    assert set(found) == set(logged) == {"reversed", "spilling"}
    for kernel, (stack, stores, registers, barriers, shared) in logged.items():
        need = found[kernel]
        assert (need.stack, need.spill_stores, need.registers) == (int(stack), int(stores), int(registers))
        assert (need.barriers, need.shared) == (int(barriers), int(shared or 0))
    assert found["reversed"].shared == 256 and found["reversed"].barriers == 4 and found["reversed"].code > 0


@needs_nvrtc
def test_spills_are_unknown_without_a_log_and_counted_with_it() -> None:
    cubin = nvrtc.compile_cubin(TWO_KERNELS, arch="sm_90a")
    assert resources(cubin.image)["spilling"].spill_loads is None
    spilling = resources(cubin.image, cubin.log)["spilling"]
    assert spilling.registers <= 32 and spilling.spill_loads and spilling.stack > 0


def test_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match="not a cubin"):
        resources(b"PTX, not machine code")


@pytest.mark.parametrize(
    ("need", "threads", "dynamic", "blocks", "limit"),
    [
        (Resources(registers=16), 32, 0, 32, "blocks"),
        (Resources(registers=32), 1024, 0, 2, "threads"),
        (Resources(registers=33), 1024, 0, 1, "registers"),  # 33 * 32 rounds up to 1280 registers per warp
        (Resources(registers=128), 128, 0, 4, "registers"),
        (Resources(registers=255), 512, 0, 0, "registers"),
        (Resources(registers=40, shared=1024), 128, 99 * 1024, 2, "shared memory"),
        (Resources(registers=40), 128, 227 * 1024, 1, "shared memory"),
        (Resources(registers=40), 128, 227 * 1024 + 1, 0, "shared memory"),
        (Resources(registers=40, barriers=16), 64, 0, 4, "barriers"),
        (Resources(registers=16), 1056, 0, 0, "threads"),
    ],
)
def test_occupancy_on_sm_90(need: Resources, threads: int, dynamic: int, blocks: int, limit: str) -> None:
    found = occupancy(need, "sm_90a", threads, dynamic)
    assert (found.blocks, found.limited_by) == (blocks, limit)
    assert found.fraction == found.warps / 64 == blocks * -(-threads // 32) / 64


def test_sm_80_has_less_shared_memory_than_its_successors() -> None:
    need = Resources(registers=32)
    assert [occupancy(need, arch, 128, 100 * 1024).blocks for arch in ("sm_80", "sm_90", "sm_100")] == [1, 2, 2]


def test_a_kernel_without_shared_memory_on_a_gpu_that_reserves_none() -> None:
    found = occupancy(Resources(registers=16), "sm_75", 128)
    assert (found.blocks, found.limited_by) == (8, "threads")


def test_an_unknown_architecture_is_named() -> None:
    with pytest.raises(ValueError, match=r"'sm_70'.*known: sm_75, sm_80"):
        multiprocessor("sm_70")
