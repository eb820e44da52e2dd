"""The tiles of fp8_matmul that only large calls choose, and which ones calls do choose."""

from __future__ import annotations

import pytest
import torch

from kernelmux.backends.cuda._launch.layout import layout
from kernelmux.backends.cuda.fp8_matmul import NARROW, SUMS, WIDE, Fp8Scaling, Fp8Tile, tile, wgmma_plan
from kernelmux.emulator import checks, nvrtc
from kernelmux.registry.backend import lookup as registered

SHARED = 227 * 1024  # bytes that a block may have on sm_90
LARGE = ((8192, 8192, 8192), (4096, 4096, 4096), (128, 14336, 4096))  # M, N, K
needs_nvrtc = pytest.mark.skipif(bool(nvrtc.unavailable()), reason=str(nvrtc.unavailable()))


def factors(m: int, n: int, k: int, *, lines: bool) -> tuple[torch.Tensor, ...]:
    """a [m, k], b [n, k] and their scales: small integers and powers of two, of which all sums are exact in fp32."""
    rng = torch.Generator().manual_seed(m + n)
    a, b = (torch.randint(-4, 5, (rows, k), generator=rng).to(torch.float8_e4m3fn) for rows in (m, n))
    shapes = ((m, 1), (1, n)) if lines else ((), ())
    left, right = (2.0 ** torch.randint(-2, 3, shape, generator=rng) for shape in shapes)
    return a, b, left, right


def product(a: torch.Tensor, b: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return ((a.float() * left) @ (b.float().t() * right)).bfloat16()


@needs_nvrtc
@pytest.mark.parametrize("t", [WIDE, NARROW], ids=str)
def test_promoted_sums_of_several_tiles_in_cuda(t: Fp8Tile) -> None:
    """A second tile each way, and more stages than the ring has, the last one in part."""
    a, b, left, right = factors(136, t.columns + 16, 128 * t.stages + 16, lines=True)
    of_a, of_b = (layout(x.view(torch.uint8))._replace(dtype=a.dtype) for x in (a, b.t()))
    launch, map_a, map_b = wgmma_plan(of_a, of_b, Fp8Scaling(1, 1, True, torch.bfloat16), t, 3)
    c = torch.empty(136, t.columns + 16, dtype=torch.bfloat16)
    with checks("full"):
        launch(map_a.of(a.view(torch.uint8)), map_b.of(b.view(torch.uint8).t()), left, right, c)
    assert torch.equal(c, product(a, b, left, right))


@pytest.mark.parametrize("out", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("lines", [False, True])
def test_a_block_has_enough_shared_memory(out: torch.dtype, *, lines: bool) -> None:
    end = Fp8Scaling(int(lines), int(lines), True, out)
    assert all(t.shared(end) <= SHARED for t in (WIDE, NARROW, SUMS))


@pytest.mark.parametrize(("shape", "columns"), [*zip(LARGE, (192, 128, 128), strict=True)], ids=str)
def test_the_tile_is_the_quickest_by_its_cycles_in_cuda(shape: tuple[int, int, int], columns: int) -> None:
    assert tile(Fp8Scaling(0, 0, True, torch.bfloat16), *shape, 132).columns == columns


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("columns", [256, 128])
def test_promoted_sums_of_several_tiles_in_triton(columns: int) -> None:
    pytest.importorskip("triton")
    from kernelmux.backends.triton.fp8_matmul import ELEMENTS
    from kernelmux.backends.triton.fp8_matmul import _specialised as triton

    tile = {256: triton.WIDE, 128: triton.NARROW}[columns]
    m, n, k = 136, tile.columns + 16, 128 * tile.stages + 16
    a, b, left, right = factors(m, n, k, lines=True)
    formats = (ELEMENTS[a.dtype], ELEMENTS[b.dtype])
    launch = triton.specialised(-1, (m, n, k), (a.stride(), b.t().stride()), formats, (2, 2), tile)
    c = torch.empty(m, n, dtype=torch.bfloat16)
    with registered.backend("triton").emulation():
        launch(c, a, b.t(), left, right)
    assert torch.equal(c, product(a, b, left, right))


@pytest.mark.parametrize(("shape", "columns"), [*zip(LARGE, (256, 256, 128), strict=True)], ids=str)
def test_the_tile_is_the_quickest_by_its_cycles_in_triton(shape: tuple[int, int, int], columns: int) -> None:
    pytest.importorskip("triton")
    from kernelmux.backends.triton.fp8_matmul._specialised import tile_for

    assert tile_for(*shape, 132).columns == columns
