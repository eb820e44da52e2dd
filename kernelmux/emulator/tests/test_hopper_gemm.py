"""A warp-specialised GEMM with TMA, mbarriers and wgmma: right, and wrong in every way that such kernels go wrong."""

from pathlib import Path

import numpy as np
import pytest
import torch

from kernelmux.emulator import EmulatorError, TensorMap, checks, compile_ptx, load, nvrtc

pytestmark = pytest.mark.skipif(nvrtc.unavailable() is not None, reason=str(nvrtc.unavailable()))

GEMM = (Path(__file__).parent / "kernels" / "gemm_wgmma.cu").read_text()
SHARED = 5 * 64 * 64 * 2 + 1024
SMALL = (64, 64, 320)


def run_gemm(shape: tuple[int, int, int], source: str = GEMM, mode: str = "full") -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    m, n, k = shape
    a, b = torch.randn(m, k).bfloat16(), torch.randn(n, k).bfloat16()
    c = torch.full((m, n), float("nan")).bfloat16()
    maps = TensorMap(a, (64, 64), 128), TensorMap(b, (64, 64), 128), TensorMap(c, (64, 64))
    kernel = load(compile_ptx(source, arch="sm_90a", filename="gemm_wgmma.cu")).kernel("gemm")
    grid = (-(-n // 64), -(-m // 64), 1)
    with checks(mode):
        kernel.launch(grid, (256, 1, 1), (*maps, np.int32(-(-k // 64) * 64)), names=("a", "b", "c", "K"), shared=SHARED)
    return c, (a.float() @ b.float().T).bfloat16()


@pytest.mark.parametrize("mode", ["fast", "full"])
@pytest.mark.parametrize("shape", [SMALL, (128, 192, 256), (72, 88, 104)], ids=str)
def test_gemm(shape: tuple[int, int, int], mode: str) -> None:
    """The last shape is no multiple of the tile: TMA fills with zeros what is outside, and does not store it."""
    got, expected = run_gemm(shape, mode=mode)
    torch.testing.assert_close(got, expected, rtol=2**-7, atol=1e-3)


def line_of(source: str, text: str) -> int:
    return next(i for i, line in enumerate(source.splitlines(), 1) if text in line)


DEFECTS = {
    "no wait for the data": ("wait(&s.full[stage], t / STAGES & 1);", "", "uninitialised", "wgmma.mma_async"),
    "wrong parity": ("t / STAGES & 1);", "1 - (t / STAGES & 1));", None, None),
    "expects too many bytes": ("expect(&s.full[stage], 2 *", "expect(&s.full[stage], 16 + 2 *", "deadlock", "try_wait"),
    "expects too few bytes": ("expect(&s.full[stage], 2 *", "expect(&s.full[stage], ", None, None),
    "barrier not initialised": ("init(&s.full[i], 1);", "if (i) init(&s.full[i], 1);", "asynchronous", None),
    "too few arrivals": ("init(&s.empty[i], 128)", "init(&s.empty[i], 129)", "deadlock", "try_wait"),
    "too many arrivals": ("init(&s.empty[i], 128)", "init(&s.empty[i], 100)", "asynchronous", "mbarrier.arrive.shared"),
    "no wgmma wait": ('asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");', "", "asynchronous", None),
    "no wgmma commit": ('asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");', "", "asynchronous", None),
    "no wgmma fence": ('asm volatile("wgmma.fence.sync.aligned;" ::: "memory");', "", "asynchronous", "mma_async"),
    "no proxy fence": ('asm volatile("fence.proxy.async.shared::cta;" ::: "memory");', "", "asynchronous", None),
    "no bulk wait": ('asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");', "", "asynchronous", None),
    "stage freed early": ("    arrive(&s.empty[stage]);\n", "", None, None),
    "tile misaligned": ("load_tile(s.a[stage],", "load_tile(s.a[stage] + 64,", "misaligned", "cp.async.bulk.tensor"),
    "map of another rank": (
        "tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}]",
        "tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2}]",
        "asynchronous",
        None,
    ),
    "not a map": ('"l"(&map), "r"(x)', '"l"((const char*)&map + 8), "r"(x)', None, None),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_planted_defects_are_reported(defect: str) -> None:
    old, new, kind, at = DEFECTS[defect]
    assert old in GEMM
    broken = GEMM.replace(old, new)
    with pytest.raises(EmulatorError) as raised:
        run_gemm(SMALL, broken)
    assert kind in (None, raised.value.kind), str(raised.value)
    if at:
        assert (raised.value.file or "").endswith("gemm_wgmma.cu")
        assert abs((raised.value.line or 0) - line_of(broken, at)) <= 5, str(raised.value)


def test_a_swizzle_that_differs_from_the_map_gives_wrong_numbers() -> None:
    got, expected = run_gemm(SMALL, GEMM.replace("(1ull << 62)", "(2ull << 62)"))
    assert not torch.allclose(got.float(), expected.float(), rtol=0.1, atol=0.1)
