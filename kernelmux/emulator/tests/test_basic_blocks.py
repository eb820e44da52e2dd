"""Which basic blocks of a kernel ran: by launch, by line, of functions that it calls."""

from __future__ import annotations

import numpy as np
import pytest

from kernelmux import emulator
from kernelmux.emulator.basic_blocks import FunctionBlocks
from kernelmux.emulator.tests.launching import needs_nvrtc

PTX = """
.version 8.0
.target sm_90
.address_size 64
.file 1 "shift.cu"
.visible .entry shift(.param .u64 out, .param .u32 n)
{
  .reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %rd<4>;
  .loc 1 3 1
  ld.param.u64 %rd1, [out];
  ld.param.u32 %r1, [n];
  mov.u32 %r2, %tid.x;
  mul.wide.u32 %rd2, %r2, 4;
  add.s64 %rd3, %rd1, %rd2;
  .loc 1 4 1
  setp.gt.u32 %p1, %r1, 1024;
  @!%p1 bra $SMALL;
  .loc 1 5 1
  add.u32 %r2, %r2, 7;
$SMALL:
  .loc 1 6 1
  setp.lt.u32 %p2, %r2, %r1;
  @%p2 st.global.u32 [%rd3], %r2;
  .loc 1 7 1
  setp.eq.u32 %p3, %r1, 12345;
  @!%p3 bra $END;
  .loc 1 8 1
  trap;
$END:
  .loc 1 9 1
  ret;
  .loc 1 10 1
  mov.u32 %r2, 0;
  ret;
}
"""


def blocks(*sizes: int, ptx: str = PTX) -> FunctionBlocks:
    """The blocks of the kernel after launches of 32 threads with these n."""
    kernel = emulator.load(ptx).kernel("shift")
    with emulator.block_coverage() as found:
        for n in sizes:
            kernel.launch(1, 32, (np.zeros(32, np.uint32), np.uint32(n)))
    functions: list[FunctionBlocks] = found.functions()
    (one,) = functions
    return one


def missing(found: FunctionBlocks) -> list[int]:
    """The lines at which blocks begin that did not run."""
    return [block.at.line for n in found.missing if (block := found.blocks[n]).at]


def test_the_block_of_an_if_that_is_never_true_is_missing_until_a_launch_reaches_it() -> None:
    assert missing(blocks(40)) == [5]
    assert missing(blocks(40, 2000)) == []
    assert [found.key for found in (blocks(40), blocks(40, 2000))] == [blocks(1).key] * 2


def test_a_guarded_store_is_part_of_the_block_that_it_stands_in() -> None:
    assert missing(blocks(0)) == [5]


def test_what_only_traps_and_what_no_way_leads_to_are_not_missing() -> None:
    found = blocks(40)
    assert [block.at.line for block in found.blocks if block.traps] == [8]
    assert 10 not in [block.at.line for block in found.blocks]


def test_a_condition_on_the_line_of_its_block_does_not_run_that_line() -> None:
    one_line = PTX.replace(".loc 1 5 1", ".loc 1 4 1")
    found = blocks(40, ptx=one_line)
    run = {line.line for n in found.ran for line in found.blocks[n].lines}
    assert missing(found) == [4] and 4 not in run and 3 in run


def test_launches_that_do_not_run_and_launches_outside_cover_nothing() -> None:
    kernel = emulator.load(PTX).kernel("shift")
    with emulator.block_coverage() as found, emulator.recorder(run=False):
        kernel.launch(1, 32, (np.zeros(32, np.uint32), np.uint32(40)))
    kernel.launch(1, 32, (np.zeros(32, np.uint32), np.uint32(2000)))
    assert found.functions() == []


def test_what_was_noted_before_goes_on() -> None:
    kernel = emulator.load(PTX).kernel("shift")
    with emulator.block_coverage() as found:
        kernel.launch(1, 32, (np.zeros(32, np.uint32), np.uint32(40)))
    with emulator.block_coverage(found) as again:
        kernel.launch(1, 32, (np.zeros(32, np.uint32), np.uint32(2000)))
    assert again is found and missing(found.functions()[0]) == []


def test_the_same_function_of_another_text_has_another_key() -> None:
    assert blocks(40).key != blocks(40, ptx=PTX.replace("12345", "54321")).key


CALLS = """
__noinline__ __device__ int odd(int x) {
  while (x > 100) {
    x = 3 * x % 128;
  }
  return 2 * x + 1;
}
extern "C" __global__ void fill(int* y, int n) {
  int sum = 0;
  for (int i = 0; i < n; ++i) sum += odd(i);
  __syncthreads();
  y[threadIdx.x] = sum;
}
"""


@needs_nvrtc
@pytest.mark.parametrize(("n", "lines"), [(3, [4]), (200, [])])
def test_a_function_that_a_kernel_calls_has_blocks_of_its_own(n: int, lines: list[int]) -> None:
    module = emulator.load(emulator.compile_ptx(CALLS, filename="fill.cu"))
    with emulator.block_coverage() as found, emulator.checks("full"):
        module.kernel("fill").launch(1, 64, (np.zeros(64, np.int32), np.int32(n)))
    kernel, function = sorted(found.functions(), key=lambda one: not one.entry)
    assert kernel.function == "fill" and not function.entry and "odd" in function.function
    run = {line for i in function.ran for line in function.blocks[i].lines}
    left = {block.at for i in function.missing if (block := function.blocks[i]).at} - run
    assert sorted(line.line for line in left) == lines
