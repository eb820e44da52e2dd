"""tf32 products of a row-major b, which CUDA does not copy: every tile, widths of stores, and which calls they are."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from types import ModuleType

import pytest
import torch

from kernelmux.backends.cuda import linear, matmul
from kernelmux.backends.cuda._families.epilogue import PLAIN
from kernelmux.backends.cuda._launch.layout import layout
from kernelmux.backends.cuda.matmul._choice import choose, problem
from kernelmux.backends.cuda.matmul._tf32 import TILINGS, Tf32Tiling, plan
from kernelmux.emulator import checks, nvrtc, recorder, trace
from kernelmux.registry import catalog
from kernelmux.registry.backend import Implementation

MULTIPROCESSORS = 132
SHARED = 227 * 1024  # bytes that a block may have on sm_90
needs_nvrtc = pytest.mark.skipif(bool(nvrtc.unavailable()), reason=str(nvrtc.unavailable()))
Sizes = tuple[int, int, int]


def integers(rows: int, columns: int, line: int = 0) -> torch.Tensor:
    """Small ones, of which all sums are exact in fp32, in lines of `line` elements, NaN behind the columns."""
    found = torch.full((rows, max(columns, line)), torch.nan)[:, :columns]
    return found.copy_(torch.randint(-8, 9, found.shape, generator=torch.Generator().manual_seed(rows + columns)))


def is_exact(sizes: Sizes, tiling: Tf32Tiling, splits: int = 1, line: int = 0) -> bool:
    """Whether a [M, K] times b [K, N] in lines of `line` elements gives exactly the sums."""
    m, k, n = sizes
    a, b = integers(m, k, -(-k // 4) * 4), integers(k, n, line)
    with checks("full"):
        c = plan(layout(a), layout(b), tiling, splits, 2).run(a, b, PLAIN)
    return torch.equal(c, (a.double() @ b.double()).float())


@needs_nvrtc
@pytest.mark.parametrize("tiling", TILINGS, ids=str)
def test_every_tile_is_exact_where_nothing_fills_it(tiling: Tf32Tiling) -> None:
    assert is_exact((33, 41, 20), tiling)


@needs_nvrtc
@pytest.mark.parametrize("sizes", [(1, 4, 4), (5, 8, 12), (64, 32, 1024)], ids=str)
def test_small_and_narrow_products_are_exact(sizes: Sizes) -> None:
    assert is_exact(sizes, TILINGS[-1])


@needs_nvrtc
@pytest.mark.parametrize(("tiling", "splits"), list(zip(TILINGS, cycle((1, 3)), strict=False)), ids=str)
def test_blocks_go_through_several_tiles_and_round_the_ring(tiling: Tf32Tiling, splits: int) -> None:
    """Every tile with K whole or in three pieces, which tiles of both kinds have."""
    assert is_exact((tiling.m + 5, 32 * tiling.stages * 2 + 44, 2 * tiling.n + 4), tiling, splits)


WIDE = [t for t in TILINGS if t.m == 256 or t.n == 256]


@needs_nvrtc
@pytest.mark.parametrize(("tiling", "columns"), list(zip(WIDE, cycle((77, 78)), strict=False)), ids=str)
def test_rows_of_odd_lengths_are_stored_in_narrow_pieces(tiling: Tf32Tiling, columns: int) -> None:
    assert is_exact((40, 70, columns), tiling, line=80)


@needs_nvrtc
@pytest.mark.parametrize("height", [1, 2])
def test_columns_are_read_without_bank_conflicts_and_stored_in_whole_sectors(height: int) -> None:
    tiling = next(t for t in TILINGS if t.height == height)
    a, b = integers(tiling.m, 64), integers(64, tiling.n)
    with trace() as found:
        plan(layout(a), layout(b), tiling, 1, 1).run(a, b, PLAIN)
    (launch,) = found.launches
    kinds = {(t.space, t.operation): t for t in launch.traffic}
    loads, stores = kinds["shared", "load"], kinds["global", "store"]
    assert loads.conflicts == 0 and loads.requests * 512 * height // 2 == 64 * tiling.n * 4
    assert stores.sectors == stores.least == tiling.m * tiling.n * 4 // 32


@pytest.mark.parametrize("tiling", TILINGS, ids=str)
def test_a_block_has_enough_shared_memory(tiling: Tf32Tiling) -> None:
    assert tiling.shared <= SHARED and tiling.consumers in (1, 2)


def chosen(m: int, k: int, n: int) -> tuple[int, int]:
    """How many works a product is cut into, and how many of them run at one time."""
    p = problem(*(layout(torch.empty(shape, device="meta")) for shape in ((m, k), (k, n))))
    tiling, splits = choose(TILINGS, p, MULTIPROCESSORS)
    return tiling.tiles(p) * splits, tiling.resident(MULTIPROCESSORS)


@pytest.mark.parametrize("sizes", [(32, 8192, 8192), (128, 4096, 14336), (512, 7168, 2048), (1, 4096, 4096)], ids=str)
def test_tiles_and_splits_occupy_most_multiprocessors_once(sizes: Sizes) -> None:
    works, resident = chosen(*sizes)
    assert 0.8 * resident <= works <= resident


def kernels(a: torch.Tensor, b: torch.Tensor) -> list[str]:
    """The kernels that a product launches, whose result must be exact."""
    with recorder() as log:
        c = matmul.VARIANTS["wgmma"].fn(a, b, "tf32")
    assert torch.equal(c, (a.double() @ b.double()).float())
    return [str(launch.kernel) for launch in log]


@needs_nvrtc
def test_b_is_read_where_it_lies() -> None:
    """Of a only what has M contiguous, or lines at odd places, is copied; b in a batch or with odd lines is too."""
    a, b, own = integers(40, 72), integers(72, 24), "matmul_wgmma_tf32"
    assert kernels(a, b) == kernels(integers(40, 72, 80), integers(72, 24, 28)) == [own]
    assert kernels(integers(3 * 40, 72).view(3, 40, 72), b) == [own]
    assert kernels(integers(40, 70), integers(70, 24)) == ["matmul_lines", own]
    assert kernels(integers(72, 40).mT, b)[-1] == own and len(kernels(integers(72, 40).mT, b)) == 2
    assert own not in kernels(a, integers(24, 72).mT)
    assert own not in kernels(a, integers(72, 23))
    assert own not in kernels(integers(80, 72).view(2, 40, 72), integers(144, 24).view(2, 72, 24))


def refusals(module: ModuleType, op: str, *arguments: object) -> list[str]:
    """Why wgmma does not take a call."""
    call = catalog.spec(op).bind(*arguments, precision="tf32")
    variant: Implementation = module.VARIANTS["wgmma"]
    return variant.reasons(replace(call, capability=(9, 0)))


def test_a_row_major_b_of_any_size_is_admitted() -> None:
    a, b = integers(3, 8), integers(8, 12)
    assert not refusals(matmul, "matmul", a, b) and not refusals(matmul, "matmul", integers(3, 7), integers(7, 12))
    for left, right, name in (
        (integers(8, 3).mT, b, "a"),
        (a, integers(8, 13), "b"),
        (a.expand(2, 3, 8), b.expand(2, 8, 12), "b"),
    ):
        (why,) = refusals(matmul, "matmul", left, right)
        assert why.startswith(f"{name} is fp32 with K strided, needs K contiguous")


def test_what_follows_a_product_needs_k_contiguous() -> None:
    x, weight, bias = integers(3, 8), integers(8, 12).mT, torch.zeros(12)
    assert not refusals(linear, "linear", x, weight, None, "none")
    for rest in ((bias, "none"), (None, "relu")):
        (why,) = refusals(linear, "linear", x, weight, *rest)
        assert why.startswith("weight is fp32 with K strided")
        assert not refusals(linear, "linear", x, weight.contiguous(), *rest)


@needs_nvrtc
@pytest.mark.parametrize("rows", [1, 8])
def test_a_batch_of_columns_keeps_k_contiguous_where_its_lines_are_copied(rows: int) -> None:
    a, b = integers(3 * rows, 5).view(3, rows, 5), integers(3 * 5, 1).view(3, 5, 1)
    y = matmul.VARIANTS["wgmma"].fn(a, b, "tf32")
    assert torch.equal(y, a @ b)
