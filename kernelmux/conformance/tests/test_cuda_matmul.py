"""The tiles of matmul on CUDA that only large calls choose, and which ones calls do choose."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pytest
import torch

import kernelmux as kx
from kernelmux.backends.cuda._families.epilogue import PLAIN, Epilogue, EpilogueKind
from kernelmux.backends.cuda._launch.layout import layout
from kernelmux.backends.cuda.matmul import _few_rows as few_rows
from kernelmux.backends.cuda.matmul import _few_rows_lines as few_rows_lines
from kernelmux.backends.cuda.matmul._choice import MatmulProblem, choose, problem
from kernelmux.backends.cuda.matmul._tensor_cores import OF_HALVES, MmaTiling
from kernelmux.backends.cuda.matmul._tensor_cores import plan as shifted_plan
from kernelmux.backends.cuda.matmul._wgmma import (
    BETWEEN,
    ODD_BETWEEN,
    ODD_TILINGS,
    TILINGS,
    WgmmaTiling,
    plan,
    tilings,
    wgmma,
)
from kernelmux.emulator import checks, nvrtc
from kernelmux.registry.call import dispatch

MULTIPROCESSORS = 132
SHARED = 227 * 1024  # bytes that a block may have on sm_90
FEW_ROWS = [few_rows.TurnedTile(*numbers) for numbers in ((8, 64, 3, 1, 2), (16, 128, 3, 4, 2), (64, 64, 2, 3, 3))]
FEW_ROWS += [few_rows.TurnedTile(32, 128, stages, 2, 1, together=steps) for stages, steps in ((3, 2), (6, 4))]
ALL_ROWS = [few_rows.TurnedTile(rows, 128, 3, 2, 1, consumers=2) for rows in (96, 160, 288)]
CLUSTERS = [t for t in ODD_TILINGS if t.peers > 1]
ALONE = [
    few_rows.TurnedTile(rows, columns, 3, 1, 1, consumers)
    for rows, columns, consumers in ((136, 128, 2), (104, 64, 1), (72, 256, 2), (264, 128, 2))
]
TOGETHER = [
    few_rows.TurnedTile(*numbers)
    for numbers in (
        (136, 128, 3, 1, 1, 2, 2, 2),
        (80, 256, 3, 1, 1, 2, 2, 1),
        (88, 64, 4, 1, 1, 1, 1, 4),
        (96, 128, 3, 2, 1, 2, 2, 2),
        (72, 64, 3, 3, 1, 1, 1, 2),
    )
]
needs_nvrtc = pytest.mark.skipif(bool(nvrtc.unavailable()), reason=str(nvrtc.unavailable()))


def integers(rows: int, columns: int, *, transposed: bool) -> torch.Tensor:
    """Small ones, of which all sums are exact in fp32; columns contiguous if transposed."""
    shape = (columns, rows) if transposed else (rows, columns)
    found = torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(rows + columns)).bfloat16()
    return found.mT if transposed else found


@needs_nvrtc
@pytest.mark.parametrize(("tiling", "transposed"), list(zip(CLUSTERS, cycle((False, True)), strict=False)), ids=str)
def test_blocks_of_a_cluster_share_their_operands(tiling: WgmmaTiling, transposed: bool) -> None:
    """With a block of each cluster beyond the last row and the last column; more steps than stages.

    One tile has contiguous rows, the next contiguous columns: a cluster copies the same boxes, however they lie.
    """
    m, n, k = tiling.m + 8, tiling.n + 8, 64 * tiling.stages + 72
    a, b = integers(m, k, transposed=transposed), integers(k, n, transposed=transposed)
    with checks("full"):
        c = plan(layout(a), layout(b), tiling, 1, 2 * tiling.peers).run(a, b, PLAIN)
    assert torch.equal(c, (a.double() @ b.double()).bfloat16())


@needs_nvrtc
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("tiling", BETWEEN, ids=str)
def test_tiles_that_are_no_whole_boxes_wide(tiling: WgmmaTiling, transposed: bool) -> None:
    """Two of them side by side, the second with a few columns."""
    a, b = integers(tiling.m + 8, 200, transposed=False), integers(200, tiling.n + 16, transposed=transposed)
    with checks("full"):
        c = plan(layout(a), layout(b), tiling, 1, 2).run(a, b, PLAIN)
    assert torch.equal(c, (a.double() @ b.double()).bfloat16())


@needs_nvrtc
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("tile", [*FEW_ROWS, *ALL_ROWS], ids=str)
def test_blocks_of_a_cluster_add_their_shares_of_k(tile: few_rows.TurnedTile, transposed: bool) -> None:
    """Two tiles side by side, of which the second has columns outside; the last share of K is the shortest."""
    k = 64 * 3 * tile.shares - 8
    a, b = integers(tile.rows - 3, k, transposed=False), integers(k, tile.columns + 8, transposed=transposed)
    with checks("full"):
        c = few_rows.plan(layout(a), layout(b), tile).run(a, b, PLAIN)
    assert torch.equal(c, (a.double() @ b.double()).bfloat16())


@needs_nvrtc
@pytest.mark.parametrize("transposed", [False, True])
def test_rows_are_divided_evenly_among_tiles(transposed: bool) -> None:
    """Two tiles below one another, and two side by side; rows of a contiguous or not."""
    tile = few_rows.TurnedTile(112, 128, 3, 2, 1, consumers=2)
    a, b = integers(216, 328, transposed=transposed), integers(328, 136, transposed=transposed)
    with checks("full"):
        c = few_rows.plan(layout(a), layout(b), tile).run(a, b, PLAIN)
    assert torch.equal(c, (a.double() @ b.double()).bfloat16())


@needs_nvrtc
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("tile", TOGETHER, ids=str)
def test_blocks_of_a_cluster_fetch_together_and_share_k(tile: few_rows.TurnedTile, transposed: bool) -> None:
    """A cluster whose last rows are outside, and one with a single block that is not; more steps than stages."""
    m, n = tile.across * tile.rows - 3, tile.down * tile.columns + 8
    k = 64 * (tile.stages + 1) * tile.shares - 8
    a, b = integers(m, k, transposed=False), integers(k, n, transposed=transposed)
    with checks("full"):
        c = few_rows.plan(layout(a), layout(b), tile).run(a, b, PLAIN)
    assert torch.equal(c, (a.double() @ b.double()).bfloat16())


@needs_nvrtc
@pytest.mark.parametrize("columns", [8, 20])
@pytest.mark.parametrize("tile", ALONE, ids=str)
def test_a_block_that_has_all_of_k_rounds_in_registers(tile: few_rows.TurnedTile, columns: int) -> None:
    """Two tiles below one another and two side by side, of which the second has few columns, stored 8 or 4 at a time."""
    m, n, k = 2 * tile.rows - 5, tile.columns + columns, 64 * tile.stages + 72
    a, b = integers(m, k, transposed=False), integers(k, n, transposed=True)
    bias, z = integers(1, n, transposed=False)[0], a.new_empty(m, n)
    kind = EpilogueKind(bias=True, activation="relu")
    with checks("full"):
        y = few_rows.plan(layout(a), layout(b), tile, kind).run(a, b, Epilogue(kind, (bias, z)))
        c = few_rows.plan(layout(a), layout(b), tile).run(a, b, PLAIN)
    want = a.double() @ b.double()
    assert torch.equal(c, want.bfloat16())
    assert torch.equal(z, (want + bias.double()).bfloat16())
    assert torch.equal(y, z.relu())


def by_weights(m: int, k: int, n: int) -> MatmulProblem:
    """c [m, n] of m rows by n rows of weights."""
    a, b = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((m, k), (n, k)))
    return problem(layout(a), layout(b.mT))


@pytest.mark.parametrize("m", [72, 100, 160, 263, 350, 734, 1000])
@pytest.mark.parametrize(
    ("k", "n"), [(4096, 7168), (11008, 4096), (3072, 512), (8192, 1024), (3000, 5000), (3824, 7432)]
)
def test_all_tiles_of_divided_rows_run_at_one_time(m: int, k: int, n: int) -> None:
    """With stages for which a block has enough shared memory; where there are too many tiles, none."""
    p = by_weights(m, k, n)
    tile = few_rows.many_rows(p, MULTIPROCESSORS)
    if tile is None:
        assert -(-m // 320) * -(-n // 128) > MULTIPROCESSORS
        return
    blocks = tile.tiles(p) * tile.shares
    assert blocks <= few_rows.ROOM[tile.peers * tile.shares] * tile.peers * tile.shares
    assert tile.stages * (tile.stage(True) + 16) <= SHARED


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((400, 5120, 5120), (136, 128, 1, 1, 1)),
        ((900, 4096, 4096), (232, 128, 1, 1, 1)),
        ((350, 11008, 4096), (176, 128, 2, 1, 1)),
        ((100, 4096, 4096), (104, 64, 1, 1, 1)),
        ((263, 3824, 7432), (136, 128, 1, 2, 2)),
        ((310, 3000, 5000), (160, 128, 1, 2, 2)),
        ((734, 2904, 3000), (184, 128, 1, 2, 2)),
        ((1000, 2008, 3000), (200, 128, 1, 1, 4)),
    ],
    ids=str,
)
def test_divided_rows_have_the_quickest_tile_of_those_timed(shape: tuple[int, int, int], tile: tuple[int, ...]) -> None:
    found = few_rows.many_rows(by_weights(*shape), MULTIPROCESSORS)
    assert found
    assert (found.rows, found.columns, found.shares, found.across, found.down) == tile


@needs_nvrtc
@pytest.mark.parametrize(("tiling", "transposed"), list(zip(OF_HALVES, cycle((False, True)), strict=False)), ids=str)
def test_lines_are_shifted_in_shared_memory(tiling: MmaTiling, transposed: bool) -> None:
    """Of both operands: lines that begin at odd multiples of 2 bytes; what is behind their ends is not multiplied."""
    m, n, k = tiling.m + 9, tiling.n + 3, 64 * tiling.stages + 21
    a, b = integers(m, k, transposed=transposed), integers(k, n, transposed=transposed)
    with checks("full"):
        c = shifted_plan(layout(a), layout(b), tiling, 1, below=4).run(a, b, PLAIN)
    assert torch.equal(c, (a.double() @ b.double()).bfloat16())


@needs_nvrtc
@pytest.mark.parametrize("tile", FEW_ROWS, ids=str)
@pytest.mark.parametrize("k", [521, 522, 524])
def test_few_rows_read_lines_that_begin_anywhere(tile: few_rows.TurnedTile, k: int) -> None:
    """What is behind the end of a line is not multiplied, by 0 neither: no other column has a sum that is no number."""
    a, b = integers(tile.rows - 3, k, transposed=False), integers(k, 203, transposed=True)
    b[:, 7] = float("inf")
    with checks("full"):
        c = few_rows_lines.plan(layout(a), layout(b), MULTIPROCESSORS, PLAIN.ending, tile).run(a, b, PLAIN)
    want, kept = (a.double() @ b.double()).bfloat16(), torch.arange(203) != 7
    assert torch.equal(c[:, kept], want[:, kept])
    assert not c[:, 7].isfinite().any()


@needs_nvrtc
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("tiling", [t for t in (*TILINGS, *BETWEEN) if t.sharing], ids=str)
def test_tiles_that_whole_rounds_leave_over_are_shared(
    tiling: WgmmaTiling, transposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three tiles and two multiprocessors the last one, and of one tile all; the last share is the shortest."""
    k, left_over = 200, WgmmaTiling.left_over

    def in_two(self: WgmmaTiling, p: Any, multiprocessors: int) -> tuple[int, int]:
        left, _ = left_over(self, p, multiprocessors)
        return left, 2 if left else 1

    monkeypatch.setattr(WgmmaTiling, "left_over", in_two)
    for multiprocessors, launches in ((2, 2), (4, 1)):
        m, n = (tiling.m * 2 + 8, tiling.n) if launches == 2 else (tiling.m - 8, tiling.n - 8)
        a, b = integers(m, k, transposed=not transposed), integers(k, n // 8 * 8, transposed=transposed)
        with checks("full"):
            found = plan(layout(a), layout(b), tiling, 1, multiprocessors)
            c = found.run(a, b, PLAIN)
        assert (found.rest is not None) == (launches == 2)
        assert torch.equal(c, (a.double() @ b.double()).bfloat16())


@needs_nvrtc
@pytest.mark.parametrize("transposed", [False, True])
def test_lines_that_begin_anywhere_are_copied(transposed: bool) -> None:
    """Of one matrix, and of a batch; zeros behind each are not read as operands."""
    a, b = integers(70, 77, transposed=False), integers(77, 131, transposed=transposed)
    with checks("full"):
        found = [wgmma(x, y, "ieee", PLAIN) for x, y in ((a, b), (a.expand(2, 70, 77), b.expand(2, 77, 131)))]
    want = (a.double() @ b.double()).bfloat16()
    assert torch.equal(found[0], want)
    assert torch.equal(found[1], want.expand(2, 70, 131))


def test_a_large_product_repays_copies() -> None:
    def variant(m: int, k: int, n: int) -> str:
        return dispatch.which(
            "matmul", *(torch.empty(s, dtype=torch.bfloat16) for s in ((m, k), (k, n))), backend="cuda"
        )

    assert variant(1000, 1001, 1001) == variant(17, 4097, 4097) == variant(4096, 1000, 1000) == "cuda/wgmma"
    assert variant(100, 200, 300) == variant(17, 4100, 4100) == "cuda/tensor_cores"


@needs_nvrtc
@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize(("more", "transposed"), [(2, False), (3, True), (1, False), (129, True)])
def test_even_and_odd_rows_take_turns(splits: int, more: int, transposed: bool) -> None:
    """Rows of 16 bytes more than a multiple of 32, their K in one piece and in two. Of an odd number of rows nothing beyond
    the last one is read or written, also where the odd ones fill their tiles."""
    tiling = next(t for t in ODD_TILINGS if t.in_turn)
    a, b = integers(2 * tiling.m + more, 520, transposed=False), integers(520, 168, transposed=transposed)
    with checks("full"):
        c = plan(layout(a), layout(b), tiling, splits, 4).run(a, b, PLAIN)
    assert torch.equal(c, (a.double() @ b.double()).bfloat16())


@needs_nvrtc
@pytest.mark.parametrize("tiling", [t for t in ODD_TILINGS + ODD_BETWEEN if t.in_turn and t.n <= 256], ids=str)
@pytest.mark.parametrize("more", [2, 3])
def test_what_an_activation_saves_takes_turns_too(tiling: WgmmaTiling, more: int) -> None:
    a, b = integers(2 * tiling.m + more, 264, transposed=False), integers(264, 136, transposed=True)
    bias, z = integers(1, 136, transposed=False)[0], a.new_empty(len(a), 136)
    kind = EpilogueKind(bias=True, activation="relu")
    with checks("full"):
        y = plan(layout(a), layout(b), tiling, 1, 4, kind).run(a, b, Epilogue(kind, (bias, z)))
    want = (a.double() @ b.double() + bias.double()).bfloat16()
    assert torch.equal(z, want)
    assert torch.equal(y, want.relu())


def test_rows_take_turns_where_that_moves_them_to_multiples_of_32_bytes() -> None:
    for m, k, transposed in (
        (512, 520, False),
        (513, 520, False),
        (511, 520, False),
        (512, 512, False),
        (512, 576, False),
        (512, 520, True),
    ):
        a, b = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((m, k), (k, 168)))
        a = torch.empty(k, m, dtype=torch.bfloat16, device="meta").mT if transposed else a
        found = problem(layout(a), layout(b)).in_turn(256)
        assert (found is not None) == ((k, transposed) == (520, False) and m >= 512)
        assert found is None or (found.M, found.products, found.left.ld) == (m - 256, 2, 1040)
        assert found is None or m == 512 or (found.without_first.M, found.without_first.products) == (256, 3)


@pytest.mark.parametrize("tiling", {*TILINGS, *BETWEEN, *ODD_TILINGS, *ODD_BETWEEN}, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_block_has_enough_shared_memory(tiling: WgmmaTiling, dtype: torch.dtype) -> None:
    assert tiling.shared(dtype) <= SHARED


def chosen(m: int, k: int, n: int) -> WgmmaTiling:
    a, b = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((m, k), (k, n)))
    p = problem(layout(a), layout(b))
    return choose(tilings(p), p, MULTIPROCESSORS)[0]


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((1000, 3000, 5000), (128, 320, 1, 2)),
        ((3000, 3000, 3000), (128, 288, 1, 2)),
        ((4096, 4104, 4104), (256, 192, 2, 1)),
        ((2000, 3000, 4008), (128, 256, 1, 2)),
        ((4096, 4096, 4096), (128, 256, 1, 1)),
        ((64, 64, 64), (64, 64, 1, 1)),
    ],
    ids=str,
)
def test_the_tile_is_the_quickest_of_those_timed(shape: tuple[int, int, int], tile: tuple[int, ...]) -> None:
    t = chosen(*shape)
    assert (t.m, t.n, t.across, t.down) == tile


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((2944, 14104, 2328), (128, 224, 1, 2)),
        ((2943, 14104, 2328), (128, 224, 1, 2)),
        ((3000, 3000, 3000), (128, 288, 1, 2)),
        ((2000, 3000, 4008), (128, 256, 1, 2)),
        ((27269, 5672, 7001), (128, 320, 1, 2)),
    ],
    ids=str,
)
def test_the_tile_of_a_weight_is_the_quickest_of_those_timed(
    shape: tuple[int, int, int], tile: tuple[int, ...]
) -> None:
    """Where rows of a are an odd number, these do not take turns, and a tile that is quicker so is none."""
    m, k, n = shape
    a, weight = (torch.empty(lines, k, dtype=torch.bfloat16, device="meta") for lines in (m, n))
    p = problem(layout(a), layout(weight.t()))
    t = choose(tilings(p), p, MULTIPROCESSORS)[0]
    assert (t.m, t.n, t.across, t.down) == tile


def test_sums_leave_registers_for_an_activation() -> None:
    p = problem(*(layout(torch.empty(4104, 4104, device="meta", dtype=torch.bfloat16)) for _ in "ab"))
    found = {t.height * t.n // 2 for t in tilings(p, EpilogueKind(bias=True, activation="gelu"))}
    assert max(found) == 160 < max(t.height * t.n // 2 for t in tilings(p))


def test_clusters_run_all_at_one_time() -> None:
    """Of 132 multiprocessors of an H200, 120 are in clusters of four."""
    pair, four = (WgmmaTiling(256, 160, 1.0, 4, height=2, across=2, down=down) for down in (1, 2))
    assert (TILINGS[0].resident(132), pair.resident(132), four.resident(132)) == (132, 132, 120)
    assert (pair.resident(1), four.resident(4)) == (2, 4), "one cluster at least"


@needs_nvrtc
@pytest.mark.filterwarnings("ignore::kernelmux.EmulationWarning")
def test_tf32_of_one_term_goes_to_another_variant() -> None:
    """The kernel of warpgroup products does not compile where a line has one element."""
    x, weight = integers(3, 1, transposed=False).float(), integers(1, 1, transposed=False).float()
    with pytest.raises(kx.UnsupportedError, match="K = 1 in fp32, needs K of at least 2"):
        kx.linear(x, weight, precision="tf32", backend="cuda/wgmma")
    assert torch.equal(kx.linear(x, weight, precision="tf32", backend="cuda"), x @ weight.T)
