"""The tiles of matmul in Triton that only large calls choose, and which ones calls do choose."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from kernelmux.backends.triton._launch.launch import Config
from kernelmux.backends.triton.matmul import _specialised, _tiles
from kernelmux.backends.triton.matmul._epilogue import PLAIN, EpilogueTensors, EpilogueTerms
from kernelmux.backends.triton.matmul._few_rows import few_rows, few_rows_rule
from kernelmux.backends.triton.matmul._few_rows_lines import few_rows_lines, few_rows_lines_rule
from kernelmux.backends.triton.matmul._padded import _repaid, with_lines
from kernelmux.backends.triton.matmul._problem import MatmulShapes, problem
from kernelmux.backends.triton.matmul._specialised import specialised
from kernelmux.backends.triton.matmul._tiles import specialised_rule
from kernelmux.registry.backend import lookup as registered

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(("more", "stages"), [(32, 4), (64, 3)])
def test_columns_beside_a_power_of_two(more: int, stages: int) -> None:
    """Two tiles, of which the second ends in its columns beside 128."""
    generator = torch.Generator().manual_seed(more)
    a, b = (
        torch.randint(-4, 5, shape, generator=generator).bfloat16()
        for shape in ((264, 136), (136, 2 * (128 + more) - 8))
    )
    config = {"BLOCK_M": 256, "BLOCK_N": 128, "MORE_N": more, "BLOCK_K": 64, "GROUP_M": 8, "STAGES": stages}
    with registered.backend("triton").emulation():
        c = specialised(a, b, lambda p: config, PLAIN)
    assert torch.equal(c, (a.double() @ b.double()).bfloat16())


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("multiprocessors", [2, 4])
def test_programs_share_tiles_that_whole_rounds_leave_over(
    multiprocessors: int, transposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three tiles the last one, and all, where they are fewer than multiprocessors; the last share is the shortest."""
    monkeypatch.setattr(_specialised, "processors", lambda device: multiprocessors)
    generator = torch.Generator().manual_seed(0)
    shapes = (264, 328), (72, 328) if transposed else (328, 72), (72,)
    a, b, bias = (torch.randint(-4, 5, shape, generator=generator).bfloat16() for shape in shapes)
    b, z = b.mT if transposed else b, a.new_empty(264, 72)
    end = EpilogueTensors(EpilogueTerms(bias=True, activation="relu"), bias, z)
    config = {"BLOCK_M": 128, "BLOCK_N": 128, "MORE_N": 0, "BLOCK_K": 64, "GROUP_M": 8, "STAGES": 3, "SPLIT": 2}
    with registered.backend("triton").emulation():
        y = specialised(a, b, lambda p: config, end)
    want = (a.double() @ b.double() + bias.double()).bfloat16()
    assert torch.equal(z, want)
    assert torch.equal(y, want.relu())


@pytest.mark.parametrize(("k", "split"), [(328, 1), (328, 3), (321, 1), (330, 2), (388, 3)])
def test_few_rows(k: int, split: int) -> None:
    """Lines of b begin at multiples of 16 bytes, or anywhere; what is behind their ends is not multiplied, by 0 neither."""
    generator = torch.Generator().manual_seed(k)
    a, b, bias = (torch.randint(-4, 5, shape, generator=generator).bfloat16() for shape in ((13, k), (203, k), (203,)))
    b[7] = float("inf")
    z = a.new_empty(13, 203)
    end = EpilogueTensors(EpilogueTerms(bias=True, activation="relu"), bias, z)
    lines = k % 8 != 0
    rule = few_rows_lines_rule if lines else few_rows_rule

    def given(p: MatmulShapes) -> Config:
        return {**rule(p), "SPLIT": split, "num_stages": 2}

    with registered.backend("triton").emulation():
        y = (few_rows_lines if lines else few_rows)(a, b.mT, given, end)
    want, kept = (a.double() @ b.mT.double() + bias.double()).bfloat16(), torch.arange(203) != 7
    assert torch.equal(z[:, kept], want[:, kept])
    assert torch.equal(y[:, kept], want[:, kept].relu())
    assert not z[:, 7].isfinite().any()


@pytest.mark.parametrize(("rows", "columns", "more"), [(130, 136, 0), (129, 136, 0), (131, 131, 32), (257, 134, 0)])
def test_even_and_odd_rows_take_turns(rows: int, columns: int, more: int) -> None:
    """Rows of 16 bytes more than a multiple of 32. Of an odd number of rows nothing beyond the last one is read or written,
    also where the odd ones fill their tiles, by the copy engine or by threads."""
    generator = torch.Generator().manual_seed(0)
    shapes = (rows, 136), (columns, 136), (columns,)
    a, b, bias = (torch.randint(-4, 5, shape, generator=generator).bfloat16() for shape in shapes)
    b, z = b.mT, a.new_empty(rows, columns)
    end = EpilogueTensors(EpilogueTerms(bias=True, activation="relu"), bias, z)
    config = {"BLOCK_M": 64, "BLOCK_N": 128, "MORE_N": more, "BLOCK_K": 64, "GROUP_M": 8, "STAGES": 4}
    assert problem(a, b, "ieee", PLAIN.ending).in_turn(64)
    with registered.backend("triton").emulation():
        c, y = (specialised(a, b, lambda p: config, e) for e in (PLAIN, end))
    want = a.double() @ b.double()
    assert torch.equal(c, want.bfloat16())
    assert torch.equal(z, (want + bias.double()).bfloat16())
    assert torch.equal(y, (want + bias.double()).bfloat16().relu())


@pytest.mark.parametrize(("n", "transposed"), [(131, False), (131, True), (136, False)])
def test_lines_that_begin_anywhere_are_copied(n: int, *, transposed: bool) -> None:
    """Those of the operands. Where n is odd, rows of the result and the argument of the activation begin anywhere too."""
    generator = torch.Generator().manual_seed(n)
    shapes = (130, 77), (n, 77) if transposed else (77, n), (n,)
    a, b, bias = (torch.randint(-4, 5, shape, generator=generator).bfloat16() for shape in shapes)
    b, z = b.mT if transposed else b, a.new_empty(130, n)
    end = EpilogueTensors(EpilogueTerms(bias=True, activation="relu"), bias, z)
    with registered.backend("triton").emulation():
        y = specialised(with_lines(a), with_lines(b), specialised_rule, end, follows=True)
    want = (a.double() @ b.double() + bias.double()).bfloat16()
    assert torch.equal(z, want)
    assert torch.equal(y, want.relu())


def test_a_large_product_repays_copies() -> None:
    def repaid(m: int, k: int, n: int) -> bool:
        p = MatmulShapes(-1, m, n, k, (k, 1), (n, 1), None, torch.bfloat16, "ieee", PLAIN.ending)
        return _repaid(p, (k % 8 > 0, n % 8 > 0))

    assert repaid(4097, 4097, 4097)
    assert repaid(500, 1001, 1001)
    assert not repaid(100, 200, 300)
    assert not repaid(8, 4097, 4097)
    assert not repaid(28, 8852, 17878)
    assert repaid(48, 6001, 12001)


def chosen(m: int, k: int, n: int, end: EpilogueTerms = PLAIN.ending) -> tuple[int, ...]:
    config = _tiles.specialised_rule(MatmulShapes(-1, m, n, k, (k, 1), (n, 1), None, torch.bfloat16, "ieee", end))
    return config["BLOCK_M"], config["BLOCK_N"] + config["MORE_N"], config["GROUP_M"]


def test_the_tile_is_the_quickest_of_those_timed() -> None:
    assert chosen(1000, 3000, 5000) == chosen(3000, 3000, 3000) == (256, 160, 1)
    assert chosen(4096, 4104, 4104) == chosen(2000, 3000, 4008) == (256, 128, 1)
    assert chosen(1787, 2880, 5120) == (128, 192, 8)
    assert chosen(4096, 4096, 4096) == (128, 256, 8)
    assert chosen(64, 64, 64) == (64, 64, 8)


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((44681, 4096, 2880), (256, 128, 64, 1)),
        ((28569, 2880, 5760), (256, 128, 0, 4)),
        ((2944, 14080, 2328), (128, 128, 0, 3)),
        ((2944, 14107, 2329), (256, 128, 0, 1)),
        ((5824, 3001, 5760), (256, 128, 0, 1)),
    ],
)
def test_of_weights_tall_tiles_are_the_quickest_of_those_timed(
    shape: tuple[int, int, int], tile: tuple[int, ...]
) -> None:
    """Of copies, whose lines end between multiples of 16 bytes, smaller ones are not."""
    m, k, n = shape
    line = k if k % 8 == 0 else (k + 63) // 64 * 64
    end = EpilogueTerms(bias=n < 3000, activation="none")
    config = _tiles.specialised_rule(MatmulShapes(-1, m, n, k, (line, 1), (1, line), None, torch.bfloat16, "ieee", end))
    assert tuple(config[name] for name in ("BLOCK_M", "BLOCK_N", "MORE_N", "SPLIT")) == tile


def of_weight(m: int, k: int, n: int, activation: str, line: int) -> MatmulShapes:
    end = EpilogueTerms(bias=activation != "none", activation=activation)
    return MatmulShapes(-1, m, n, k, (line, 1), (1, line), None, torch.bfloat16, "ieee", end)


def test_odd_lines_of_many_columns_are_walked_in_groups_of_rows() -> None:
    sizes = ((8192, 8200, 8192), (12000, 2984, 6000), (4096, 4104, 4104), (50000, 1048, 2048))
    groups = [_tiles.specialised_rule(of_weight(m, k, n, "none", k))["GROUP_M"] for m, k, n in sizes]
    assert groups == [8, 8, 1, 1]


def test_an_activation_leaves_registers_for_128_sums() -> None:
    m, n, _ = chosen(4096, 4104, 4104, EpilogueTerms(bias=True, activation="gelu"))
    assert m * n <= 128 * 256
