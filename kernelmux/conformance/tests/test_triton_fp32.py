"""Products on the FP32 pipes whose tiles are cut into equal shares of K, in Triton."""

from __future__ import annotations

from functools import partial

import pytest
import torch

pytest.importorskip("triton")

from kernelmux.backends.triton.matmul._epilogue import PLAIN
from kernelmux.backends.triton.matmul._fp32 import fp32
from kernelmux.backends.triton.matmul._fp32_tiles import TILES, SumsTile, TileCut, fp32_rule
from kernelmux.backends.triton.matmul._problem import MatmulShapes, problem
from kernelmux.registry.backend import lookup as registered

pytestmark = pytest.mark.filterwarnings("ignore")


def integers(*shape: int) -> torch.Tensor:
    """Small ones, of which all sums are exact in fp32."""
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(sum(shape))).float()


def chosen(choice: TileCut, _: MatmulShapes) -> TileCut:
    """A rule of one choice."""
    return choice


@pytest.mark.parametrize("tile", [t for t in TILES if t.m <= 64], ids=str)
@pytest.mark.parametrize(("transposed", "k"), [(False, 132), (True, 129)])
def test_programs_share_tiles(tile: SumsTile, k: int, *, transposed: bool) -> None:
    """Four tiles: none, the last three and all of them are shared, by fewer programs than tiles and by more."""
    m, n = tile.m + 3, tile.n + 4
    a, b = integers(m, k), integers(n, k).mT if transposed else integers(k, n)
    expected = (a.double() @ b.double()).float()
    for choice in (TileCut(tile, 4, 0), TileCut(tile, 1, 2), TileCut(tile, 0, 7)):
        with registered.backend("triton").emulation():
            c = fp32(a, b, partial(chosen, choice), PLAIN)
        assert torch.equal(c, expected), choice


@pytest.mark.parametrize(("k", "n"), [(68, 130), (67, 132), (66, 129)])
def test_copies_as_wide_as_lines_of_their_own_allow(k: int, n: int) -> None:
    """Of 4 and 2 elements, 1 and 4, 2 and 1; the last step of K and the last columns are partly outside."""
    a, b = integers(11, k), integers(k, n)
    with registered.backend("triton").emulation():
        c = fp32(a, b, lambda p: TileCut(TILES[-1], p.tiles(8, 128), 0), PLAIN)
    assert torch.equal(c, (a.double() @ b.double()).float())


@pytest.mark.parametrize("batch", [(2, 3), (6,)])
def test_products_of_a_batch(batch: tuple[int, ...]) -> None:
    """One left factor for all; programs share tiles of two products."""
    a, b = integers(35, 76).expand(*batch, 35, 76), integers(*batch, 76, 70)
    with registered.backend("triton").emulation():
        c = fp32(a, b, lambda p: TileCut(TILES[-1], 5, 4), PLAIN)
    assert torch.equal(c, (a.double() @ b.double()).float())


@pytest.mark.parametrize("shape", [(41, 17912, 3008), (465, 6080, 7721), (4096, 4096, 4096), (1, 4096, 4096)])
def test_programs_that_share_run_at_one_time(shape: tuple[int, int, int]) -> None:
    """With what whole rounds of tiles leave over: no multiprocessor has more of them than it has room for."""
    m, k, n = shape
    p = problem(torch.empty(m, k), torch.empty(n, k).mT, "ieee", PLAIN.ending)
    tile, whole, programs = fp32_rule(p)
    tiles = p.tiles(tile.m, tile.n)
    assert programs <= 132 * tile.programs
    assert whole == tiles or programs > tiles - whole
