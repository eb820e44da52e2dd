"""cp.async: data, zero fill, groups and mbarrier arrivals; a wait that is missing or too weak is noticed."""

from typing import Any

import numpy as np
import pytest
import torch

from kernelmux.emulator import EmulatorError, checks, compile_ptx, load, nvrtc
from kernelmux.emulator.tests import launching

pytestmark = pytest.mark.skipif(nvrtc.unavailable() is not None, reason=str(nvrtc.unavailable()))

GEMM = launching.source("gemm_mma")


def line_of(source: str, text: str) -> int:
    """Number of the first line that contains `text`."""
    return next(i for i, line in enumerate(source.splitlines(), 1) if text in line)


def run_gemm(source: str = GEMM, mode: str = "full") -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    m, n, k = 64, 32, 96
    a, b = torch.randn(m, k).bfloat16(), torch.randn(k, n).bfloat16()
    c = torch.full((m, n), float("nan"))
    kernel = load(compile_ptx(source, arch="sm_80", filename="gemm_mma.cu")).kernel("gemm")
    arguments = (a, b, c, np.int32(n), np.int32(k))
    with checks(mode):
        kernel.launch((n // 16, m // 32, 1), (64, 1, 1), arguments, names=("a", "b", "c", "N", "K"))
    return c, a.float() @ b.float()


@pytest.mark.parametrize("mode", ["fast", "full"])
def test_pipelined_gemm(mode: str) -> None:
    got, expected = run_gemm(mode=mode)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-4)


WAIT = 'asm volatile("cp.async.wait_group 1;" ::: "memory");\n'


@pytest.mark.parametrize(
    ("old", "new", "kind", "at"),
    [
        (WAIT, "\n", "uninitialised", "ldmatrix.sync"),
        ("wait_group 1", "wait_group 2", "uninitialised", "ldmatrix.sync"),
        ("    __syncthreads();\n    multiply", "    multiply", "race", "ldmatrix.sync"),
        ("__syncthreads();  // before", "// before", "race", "cp.async.cg"),
        ("[BLOCK_K + PAD]", "[BLOCK_K + PAD - 1]", "misaligned", "cp.async.cg"),
    ],
    ids=["no wait", "wait too weak", "no barrier after the wait", "no barrier before refilling", "misaligned rows"],
)
def test_planted_defects_are_reported_with_their_line(old: str, new: str, kind: str, at: str) -> None:
    assert old in GEMM
    broken = GEMM.replace(old, new)
    with pytest.raises(EmulatorError) as raised:
        run_gemm(broken)
    assert raised.value.kind == kind
    assert (raised.value.file or "").endswith("gemm_mma.cu")
    assert abs((raised.value.line or 0) - line_of(broken, at)) <= 2


def test_a_missing_wait_gives_wrong_results_in_fast_mode() -> None:
    got, expected = run_gemm(GEMM.replace(WAIT, "\n"), mode="fast")
    assert not torch.allclose(got, expected, rtol=1e-2, atol=1e-2)


def launch(body: str, *arguments: Any, threads: int = 32) -> None:
    """Runs a kernel with an 8 KB shared array `tile`, its own part `to` (16 bytes) and the thread's `from`."""
    source = f"""extern "C" __global__ void kernel(const int* x, int* y, int n) {{
  __shared__ alignas(16) int tile[2048];
  __shared__ alignas(8) unsigned long long bar;
  unsigned to = (unsigned)__cvta_generic_to_shared(tile + threadIdx.x * 4);
  unsigned b = (unsigned)__cvta_generic_to_shared(&bar);
  const int* from = x + threadIdx.x * 4;
  {body}
  for (int i = 0; i < 4; i++) y[threadIdx.x * 4 + i] = tile[threadIdx.x * 4 + i];
}}"""
    kernel = load(compile_ptx(source, arch="sm_90a", filename="copy.cu")).kernel("kernel")
    with checks("full"):
        kernel.launch((1, 1, 1), (threads, 1, 1), arguments, names=("x", "y", "n"))


def copied(body: str, n: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = torch.arange(1, 129, dtype=torch.int32), torch.zeros(128, dtype=torch.int32)
    launch(body, x, y, np.int32(n))
    return x, y


FOUR = 'for (int i = 0; i < 16; i += {0}) asm volatile("cp.async.ca.shared.global [%0], [%1], {0};"\n' + (
    '    :: "r"(to + i), "l"((const char*)from + i) : "memory");\n  asm volatile("cp.async.wait_all;" ::: "memory");'
)


@pytest.mark.parametrize("size", [4, 8, 16])
def test_sizes(size: int) -> None:
    x, y = copied(FOUR.format(size))
    assert torch.equal(x, y)


def test_what_the_source_size_leaves_is_zero() -> None:
    body = """int bytes = max(0, min(16, (n - (int)threadIdx.x * 4) * 4));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(bytes) : "memory");
  asm volatile("cp.async.wait_all;" ::: "memory");"""
    x, y = copied(body, n=70)
    assert torch.equal(y, torch.where(torch.arange(128) < 70, x, 0))


def test_a_source_size_of_zero_reads_nothing() -> None:
    body = """asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from + 1000), "r"(0));
  asm volatile("cp.async.wait_all;" ::: "memory");"""
    assert not copied(body)[1].any()


def test_reading_beyond_the_source_is_out_of_bounds() -> None:
    with pytest.raises(EmulatorError, match=r"\bx\b") as raised:
        copied(FOUR.format(16).replace("from + i", "from + i + 16"))
    assert raised.value.kind == "out of bounds" and raised.value.thread == (31, 0, 0)


MBARRIER = """if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(b), "r"(COUNT));
  __syncthreads();
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory");
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(b) : "memory");
  asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra again; }" :: "r"(b));"""


def test_an_mbarrier_counts_copies() -> None:
    x, y = copied(MBARRIER.replace("COUNT", "32"))
    assert torch.equal(x, y)


def test_an_mbarrier_that_expects_too_much_is_a_deadlock() -> None:
    with pytest.raises(EmulatorError) as raised:
        copied(MBARRIER.replace("COUNT", "33"))
    assert raised.value.kind == "deadlock"
