"""The tiles of 8-bit products with few rows of a: clusters that only large calls choose, and which ones calls do choose."""

from __future__ import annotations

import pytest
import torch

from kernelmux.backends.cuda import fp8_matmul, int8_matmul
from kernelmux.backends.cuda._families.few_rows import FewRowsTile, few_rows_launch, few_rows_tile, pays
from kernelmux.backends.cuda._launch.layout import layout
from kernelmux.emulator import checks, nvrtc

SHARED = 227 * 1024  # bytes that a block may have on sm_90, and a kibibyte less than a multiprocessor has
SIZES = (16, 1024, 2048, 4096, 5120, 8192, 14336, 28672, 128256)
needs_nvrtc = pytest.mark.skipif(bool(nvrtc.unavailable()), reason=str(nvrtc.unavailable()))


def operands(m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """a [m, k] and b [k, n] of small integers, of which all sums are exact in fp32."""
    rng = torch.Generator().manual_seed(m + n)
    a, b = (torch.randint(-4, 5, (rows, k), generator=rng).to(torch.int8) for rows in (m, n))
    return a, b.t()


@needs_nvrtc
@pytest.mark.parametrize("splits", [1, 2, 8])
@pytest.mark.parametrize("rows", [8, 64])
def test_clusters_share_k(rows: int, splits: int) -> None:
    """Two tiles, the second in part, and more stages than the ring has, the last one in part."""
    m, n, k = rows - 3, 68, 128 * (3 * splits - 1) + 16
    a, b = operands(m, n, k)
    t, want = FewRowsTile(rows, 2, splits), (a.int() @ b.int()).float()
    integers, floats = torch.empty(m, n, dtype=torch.int32), torch.empty(m, n)
    launch = few_rows_launch(
        int8_matmul.FEW_ROWS_SOURCE, layout(a), layout(b), t, SCALED=0, SCALES_A=0, SCALES_B=0, OUTPUT="int"
    )
    x, y = (
        a.float().to(torch.float8_e4m3fn).view(torch.uint8),
        b.t().float().to(torch.float8_e5m2).view(torch.uint8).t(),
    )
    end = fp8_matmul.Fp8Scaling(0, 0, True, torch.float32)
    of_a, of_b = layout(x)._replace(dtype=torch.float8_e4m3fn), layout(y)._replace(dtype=torch.float8_e5m2)
    fp8 = few_rows_launch(fp8_matmul.FEW_ROWS_SOURCE, of_a, of_b, t, **end.macros(of_a, of_b))
    with checks("full"):
        launch(a, b, None, None, integers)
        fp8(x, y, torch.tensor(0.5), torch.tensor(4.0), floats)
    assert torch.equal(integers.float(), want) and torch.equal(floats, 2 * want)


@pytest.mark.parametrize("m", [1, 8, 9, 17, 33, 64, 65, 128])
@pytest.mark.parametrize("multiprocessors", [3, 78, 114, 132])
def test_tiles_have_room(m: int, multiprocessors: int) -> None:
    """Also where a multiprocessor has two of them, or three."""
    for n in SIZES:
        for k in SIZES:
            t = few_rows_tile(m, n, k, multiprocessors)
            blocks = -(-n // 64) * t.splits
            assert t.rows >= m and t.stages >= 2 and t.splits in (1, 2, 4, 8)
            assert t.shared <= SHARED if blocks <= multiprocessors else 2 * (t.shared + 1024) <= SHARED + 1024
            assert t.splits <= 2 or 3 * (t.shared + 1024) <= SHARED + 1024 or t.rows == 128


@pytest.mark.parametrize(
    ("shape", "splits"),
    [
        ((128, 2048, 7168), 4),
        ((1, 4096, 4096), 1),
        ((17, 4096, 4096), 2),
        ((32, 8192, 8192), 2),
        ((64, 14336, 4096), 1),
        ((16, 2048, 7168), 8),
    ],
    ids=str,
)
def test_how_many_blocks_share_k(shape: tuple[int, int, int], splits: int) -> None:
    """M, N, K."""
    assert few_rows_tile(*shape, 132).splits == splits


def test_many_rows_and_tiles_are_left_to_wide_tiles() -> None:
    assert pays(64, 128256, 132) and pays(128, 16896, 132) and not pays(65, 16897, 132)
