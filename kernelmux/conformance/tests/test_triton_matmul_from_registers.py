"""tf32 products of a row-major b, which Triton does not copy: every tile, whole accesses, and which calls they are."""

from __future__ import annotations

from itertools import cycle

import pytest
import torch

from kernelmux import emulator
from kernelmux.backends.triton import matmul
from kernelmux.backends.triton.matmul import _from_registers as registers
from kernelmux.backends.triton.matmul._epilogue import PLAIN
from kernelmux.backends.triton.matmul._problem import problem
from kernelmux.backends.triton.matmul._register_tiles import SPACE, TILES, rule
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered

pytestmark = pytest.mark.filterwarnings("ignore:.*on the emulator", "ignore:.*FP_FUSION")
Tile = tuple[int, int, int, float]


def integers(*shape: int) -> torch.Tensor:
    """Small ones, of which all sums are exact in fp32."""
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(sum(shape))).float()


def run(a: torch.Tensor, b: torch.Tensor, tile: Tile, split: int = 1) -> tuple[torch.Tensor, emulator.Trace]:
    m, n, stages, _ = tile
    config = {"BLOCK_M": m, "BLOCK_N": n, "GROUP_M": 8, "STAGES": stages, "SPLIT_K": split}
    with registered.backend("triton").emulation(), emulator.checks("full"), emulator.trace() as trace:
        return registers.from_registers(a, b, lambda _: config), trace


LARGE = (((300, 136, 520), 1), ((70, 1100, 136), 3))  # several tiles each way, and K in pieces


@pytest.mark.parametrize(
    ("tile", "sizes", "split"),
    [(tile, *product) for tile, large in zip(TILES, cycle(LARGE)) for product in (((5, 36, 24), 1), large)],
    ids=str,
)
def test_every_tile_is_exact(tile: Tile, sizes: tuple[int, int, int], split: int) -> None:
    m, k, n = sizes
    a, b = integers(m, k), integers(k, n)
    c, _ = run(a, b, tile, split)
    assert torch.equal(c.double(), a.double() @ b.double())


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_b_is_read_without_bank_conflicts_and_c_stored_in_whole_sectors(tile: Tile) -> None:
    m, n, _, _ = tile
    a, b = integers(m, 64), integers(64, n)
    _, trace = run(a, b, tile)
    reads = [t for t in trace.launches[0].traffic if (t.space, t.operation) == ("shared", "load") and t.size > 1]
    (stores,) = [t for t in trace.launches[0].traffic if (t.space, t.operation) == ("global", "store")]
    assert {t.size for t in reads} == {stores.size} == {n // 16}
    assert sum(t.lanes * t.size for t in reads) == 64 * n * 4 and all(t.wavefronts == t.least for t in reads)
    assert stores.sectors == stores.least == m * n * 4 // 32


@pytest.mark.parametrize(
    "sizes", [(512, 7168, 2048), (128, 4096, 14336), (1000, 3000, 5000), (64, 8192, 1024)], ids=str
)
def test_few_multiprocessors_wait_for_the_last_tiles(sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    p = problem(torch.empty(m, k, device="meta"), torch.empty(k, n, device="meta"), "tf32", PLAIN.ending)
    config = rule(p)
    works = p.tiles(config["BLOCK_M"], config["BLOCK_N"]) * config["SPLIT_K"]
    assert works >= 0.8 * 132 * -(-works // 132)
    assert SPACE.refusal({**config, "SPLIT_K": 1}, p) is None


def refusals(*arguments: torch.Tensor) -> list[str]:
    """Why the variant does not take a product."""
    return matmul.VARIANTS["from_registers"].reasons(catalog.spec("matmul").bind(*arguments, precision="tf32"))


def test_what_is_taken_is_one_matrix_with_rows() -> None:
    a, b, batch = integers(64, 32), integers(32, 48), integers(3, 64, 32)
    assert not refusals(a, b) and not refusals(batch, b)
    assert refusals(a, integers(48, 32).mT) == ["b has N strided, needs N contiguous"]
    assert refusals(batch, integers(3, 32, 48)) == ["b is a batch of matrices, needs one"]


def test_only_an_a_of_strided_rows_is_copied() -> None:
    a, b = integers(64, 96), integers(96, 48)
    fn = matmul.VARIANTS["from_registers"].fn
    for left, launches in ((a, 1), (integers(96, 64).mT, 2), (integers(3, 80, 96)[:, :50], 1)):
        with registered.backend("triton").emulation(), emulator.recorder() as log:
            c = fn(left, b, "tf32")
        assert torch.equal(c.double(), left.double() @ b.double()) and len(log) == launches
