"""fp32 products as six products of bf16 planes, in Triton: splitting, shares of tiles, what planes do not hold."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

pytest.importorskip("triton")

from kernelmux import emulator
from kernelmux.backends.triton._families.planes import apart, split
from kernelmux.backends.triton.matmul import VARIANTS, _bf16x6
from kernelmux.backends.triton.matmul._bf16x6 import TILES, PlanesCut, PlanesTile, bf16x6, bf16x6_rule
from kernelmux.backends.triton.matmul._epilogue import PLAIN, EpilogueTensors, EpilogueTerms
from kernelmux.backends.triton.matmul._problem import MatmulShapes, problem
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered

pytestmark = pytest.mark.filterwarnings("ignore")


def integers(*shape: int) -> torch.Tensor:
    """Small ones, of which all sums are exact in fp32."""
    return torch.randint(-50, 51, shape, generator=torch.Generator().manual_seed(sum(shape))).float()


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def planes_of(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The sum of the planes, and how many words say that there is a number which these do not hold."""
    with registered.backend("triton").emulation(), emulator.checks("full"):
        *planes, flags = split(x, torch.ones(3, 200))
    length, width = x.shape[-1], apart(x.shape[-1])
    each, ones = planes[0].view(*x.shape[:-1], 3, width).double(), planes[1].view(3, 3, 256)
    assert not each[..., length:].any()
    assert int((ones[:, 0, :200] == 2**24).sum()) == int((ones != 0).sum()) == 600
    return each[..., :length].sum(-2) / 2**24, int((flags != 0).sum())


@pytest.mark.parametrize(
    "x",
    [
        numbers(5, 7),
        numbers(300, 333) * 2.0**-66,
        numbers(3, 1, 65) * 2.0**-100,
        numbers(2, 3, 70, 40).transpose(1, 2),
        numbers(40, 1100)[:, 3:1001],
        numbers(130, 64).clamp(-1, 1) * 2.0**28,
    ],
    ids=lambda x: "x".join(map(str, x.shape)),
)
def test_planes_hold_all_bits(x: torch.Tensor) -> None:
    """Lines that begin anywhere, one after the other or by three strides."""
    sums, found = planes_of(x)
    assert torch.equal(sums, x.double())
    assert not found


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 2.0**32, -(2.0**-135), 2.0**-149])
def test_what_planes_do_not_hold_is_found(value: float) -> None:
    x = numbers(300, 333)
    x[-1, -1] = value
    assert planes_of(x)[1] == 1


@pytest.mark.parametrize("value", [0.0, -0.0, 2.0**28, 2.0**-134, 2.0**-126])
def test_what_planes_just_hold_is_not(value: float) -> None:
    x = numbers(70, 65)
    x[3, 5] = value
    sums, found = planes_of(x)
    assert torch.equal(sums, x.double())
    assert not found


def shares(whole: int, programs: int, tile: PlanesTile, p: MatmulShapes) -> PlanesCut:
    return PlanesCut(tile, whole, programs)


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: str(tile.columns))
@pytest.mark.parametrize("transposed", [(False, False), (True, True)])
def test_programs_share_tiles(tile: PlanesTile, transposed: tuple[bool, bool]) -> None:
    """None, the last ones, and all; by fewer programs than tiles and by more."""
    a, b = integers(257, 333), integers(333, 129)
    a, b = a.t().contiguous().t() if transposed[0] else a, b.t().contiguous().t() if transposed[1] else b
    want, tiles = (a.double() @ b.double()).float(), 3 * -(-129 // tile.columns)
    for whole, programs in ((tiles, 0), (tiles - 2, 5), (0, 4)):
        with registered.backend("triton").emulation(), emulator.checks("full"):
            c = bf16x6(a, b, partial(shares, whole, programs, tile), PLAIN)
        assert torch.equal(c, want), (whole, programs)


def test_a_program_has_several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five tiles for each of two, and a share of the last one; a bias and an activation."""
    monkeypatch.setattr(_bf16x6, "processors", lambda device: 2)
    a, b, bias = integers(11 * 128 - 5, 131), integers(131, 127), integers(127)
    z = a.new_empty(len(a), 127)
    end = EpilogueTensors(EpilogueTerms(bias=True, activation="relu"), bias, z)
    with registered.backend("triton").emulation(), emulator.checks("full"):
        y = bf16x6(a, b, partial(shares, 10, 2, TILES[0]), end)
    want = (a.double() @ b.double() + bias).float()
    assert torch.equal(z, want)
    assert torch.equal(y, want.relu())


@pytest.mark.parametrize("transposed", [False, True])
def test_matrices_that_share_b_are_one(*, transposed: bool) -> None:
    a, b = integers(3, 50, 70), integers(70, 131)
    a = a.mT.contiguous().mT if transposed else a
    with registered.backend("triton").emulation():
        c = bf16x6(a, b, bf16x6_rule, PLAIN)
    assert torch.equal(c, (a.double() @ b.double()).float())


@pytest.mark.parametrize("value", [math.inf, math.nan, 2.0**100, 2.0**-140])
def test_other_numbers_are_computed_as_ever(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of them; where tiles are shared and sums have an end too. Six tiles, three of each program."""
    monkeypatch.setattr(_bf16x6, "processors", lambda device: 1)
    a, b, bias = numbers(200, 200), numbers(200, 131), numbers(131)
    a[3, 5], b[5, 7], z = value, 0, a.new_empty(200, 131)
    end = EpilogueTensors(EpilogueTerms(bias=True, activation="relu"), bias, z)
    with registered.backend("triton").emulation():
        y = bf16x6(a, b, partial(shares, 2, 3, TILES[0]), end)
    want = a @ b + bias
    torch.testing.assert_close(z, want, equal_nan=True)
    torch.testing.assert_close(y, want.relu(), equal_nan=True)


def test_positive_sums_are_not_cut() -> None:
    """A tensor core's own sums of so many products would be off by 256 * 2^-23, half of what it cuts at most."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.rand(3, 4096, generator=generator), torch.rand(4096, 5, generator=generator)
    with registered.backend("triton").emulation():
        c = bf16x6(a, b, bf16x6_rule, PLAIN)
    want = a.double() @ b.double()
    assert float(((c.double() - want) / want).abs().max()) < 8 * 2.0**-24


def refusals(*arguments: torch.Tensor) -> list[str]:
    """Why the variant does not take a product."""
    return VARIANTS["bf16x6"].reasons(catalog.spec("matmul").bind(*arguments))


def test_a_batch_of_right_operands_is_not_taken() -> None:
    a, b = numbers(3, 64, 32), numbers(32, 48)
    assert not refusals(a, b)
    assert refusals(a, numbers(3, 32, 48)) == ["b is a batch of matrices, needs one"]


@pytest.mark.parametrize(
    ("m", "k", "n", "pays"),
    [
        (4096, 4096, 4096, True),
        (1000, 3000, 5000, True),
        (1000, 1000, 1000, True),
        (5003, 333, 777, True),
        (20000, 128, 512, True),
        (128, 4096, 4096, True),
        (700, 700, 700, True),
        (512, 512, 512, False),
        (64, 4096, 4096, False),
        (64, 8192, 28672, False),
        (4096, 4096, 16, False),
    ],
)
def test_a_large_product_repays_its_planes(m: int, k: int, n: int, *, pays: bool) -> None:
    call = catalog.spec("matmul").bind(torch.empty(m, k), torch.empty(k, n))
    assert pays == all(condition.check(call) is None for condition in VARIANTS["bf16x6"].pays)


@pytest.mark.parametrize(
    ("m", "k", "n", "columns", "shared"),
    [
        (4096, 4096, 4096, 128, True),
        (3000, 3000, 3000, 128, True),
        (1000, 3000, 5000, 128, True),
        (6016, 3701, 11824, 128, True),
        (512, 4096, 4096, 128, False),
        (2048, 1024, 1024, 128, False),
        (3000, 1238, 1240, 128, False),
        (8192, 256, 1024, 128, False),
        (20000, 128, 512, 128, False),
        (256, 4096, 4096, 64, False),
        (1000, 1000, 1000, 64, False),
        (700, 700, 700, 64, False),
        (512, 512, 512, 64, False),
        (5003, 333, 777, 64, False),
        (128, 4096, 4096, 64, True),
    ],
)
def test_the_tile_that_was_the_quickest(m: int, k: int, n: int, columns: int, *, shared: bool) -> None:
    """Programs that share run at one time."""
    cut = bf16x6_rule(problem(torch.empty(m, k), torch.empty(k, n), "ieee", PLAIN.ending))
    over = -(-m // 128) * -(-n // columns) - cut.whole
    assert (cut.tile.columns, bool(cut.programs)) == (columns, shared)
    assert cut.whole % 132 == 0 and over < cut.programs <= 132 if shared else not over
