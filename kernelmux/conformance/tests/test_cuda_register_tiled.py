"""Products on the FP32 pipes whose tiles are cut into equal shares of K, in CUDA."""

from __future__ import annotations

from itertools import cycle

import pytest
import torch

from kernelmux.backends.cuda._families.epilogue import PLAIN
from kernelmux.backends.cuda._launch.layout import layout
from kernelmux.backends.cuda.matmul._choice import problem
from kernelmux.backends.cuda.matmul._copied_tiles import EIGHT, SIXTEEN, CopiedTiling
from kernelmux.backends.cuda.matmul._copied_tiles import plan as few_rows_plan
from kernelmux.backends.cuda.matmul._register_tiled import TILINGS, RegisterTiling, choice, plan
from kernelmux.emulator import nvrtc

MULTIPROCESSORS = 132
needs_nvrtc = pytest.mark.skipif(bool(nvrtc.unavailable()), reason=str(nvrtc.unavailable()))


def integers(*shape: int) -> torch.Tensor:
    """Small ones, of which all sums are exact in fp32."""
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(sum(shape))).float()


@needs_nvrtc
@pytest.mark.parametrize(("tiling", "transposed"), list(zip(TILINGS, cycle((False, True)), strict=False)), ids=str)
def test_blocks_share_tiles(tiling: RegisterTiling, transposed: bool) -> None:
    """Four tiles: none, the last three and all of them are shared, by fewer blocks than tiles and by more."""
    m, n, k = tiling.m + 3, tiling.n + 1, 2 * tiling.step + 1
    a, b = integers(m, k), integers(n, k).mT if transposed else integers(k, n)
    expected = (a.double() @ b.double()).float()
    for whole, blocks in ((4, 0), (1, 2), (0, 7)):
        c = plan(layout(a), layout(b), tiling, whole, blocks).run(a, b, PLAIN)
        assert torch.equal(c, expected), (whole, blocks)


@needs_nvrtc
@pytest.mark.parametrize("tiling", [EIGHT, SIXTEEN], ids=str)
def test_few_rows(tiling: CopiedTiling) -> None:
    """Blocks share K or not; the last one has a step of 4 k's."""
    a, b = integers(tiling.m - 3, 164), integers(tiling.n + 1, 164).mT
    for shares in (1, 2):
        c = few_rows_plan(problem(layout(a), layout(b)), tiling, shares).run(a, b, PLAIN)
        assert torch.equal(c, (a.double() @ b.double()).float()), shares


@pytest.mark.parametrize(
    "shape", [(41, 17912, 3008), (465, 6080, 7721), (4096, 4096, 4096), (1, 4096, 4096), (3, 0, 5)]
)
def test_blocks_that_share_run_at_one_time(shape: tuple[int, int, int]) -> None:
    """With what whole rounds of tiles leave over: no multiprocessor has more of them than it has room for."""
    m, k, n = shape
    p = problem(layout(torch.empty(m, k)), layout(torch.empty(n, k).mT))
    tiling, whole, blocks = choice(p, MULTIPROCESSORS)
    assert blocks <= MULTIPROCESSORS * tiling.blocks
    assert whole == tiling.tiles(p) or blocks > tiling.tiles(p) - whole
