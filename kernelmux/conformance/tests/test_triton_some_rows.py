"""Tiles of c^T whose rows of a are those of one to three instructions, and which products of some hundred rows take them;
of which a is copied first."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from kernelmux.backends.triton.linear import linear
from kernelmux.backends.triton.matmul import _specialised
from kernelmux.backends.triton.matmul._epilogue import PLAIN, EpilogueTensors, EpilogueTerms
from kernelmux.backends.triton.matmul._problem import MatmulShapes
from kernelmux.backends.triton.matmul._specialised import specialised
from kernelmux.backends.triton.matmul._tiles import specialised_rule
from kernelmux.registry.backend import lookup as registered

pytestmark = pytest.mark.filterwarnings("ignore")


def chosen(shape: tuple[int, int, int], end: EpilogueTerms = PLAIN.ending) -> dict[str, int]:
    m, k, n = shape
    return specialised_rule(MatmulShapes(-1, m, n, k, (k, 1), (1, k), None, torch.bfloat16, "ieee", end))


@pytest.mark.parametrize(
    ("rows", "columns", "parts", "split", "slots"),
    [
        (263, 128, (256, 32, 0), 3, 1),
        (263, 256, (128, 16, 0), 1, 1),
        (150, 64, (128, 32, 0), 1, 1),
        (83, 64, (64, 16, 0), 2, 1),
        (130, 128, (64, 0, 0), 1, 1),
        (300, 128, (128, 64, 16), 1, 4),
        (300, 128, (128, 64, 32), 3, 1),
        (130, 64, (64, 32, 16), 1, 1),
        (112, 256, (64, 32, 16), 1, 2),
        (340, 128, (256, 64, 16), 2, 1),
    ],
)
@pytest.mark.parametrize("transposed", [False, True])
def test_a_turned_tile_has_rows_of_one_to_three_instructions(
    rows: int, columns: int, parts: tuple[int, int, int], split: int, slots: int, transposed: bool
) -> None:
    """All of them, or some: those of the last instruction lie beyond the rows; the last share of K is the shortest."""
    generator = torch.Generator().manual_seed(1)
    shapes = (rows, 328), (136, 328) if transposed else (328, 136), (136,)
    a, b, bias = (torch.randint(-4, 5, shape, generator=generator).bfloat16() for shape in shapes)
    b, z = b.mT if transposed else b, a.new_empty(rows, 136)
    end = EpilogueTensors(EpilogueTerms(bias=True, activation="relu"), bias, z)
    n, more, last = parts
    tile = {"BLOCK_M": columns, "BLOCK_N": n, "MORE_N": more, "LAST_N": last, "BLOCK_K": 64, "GROUP_M": 1, "STAGES": 3}
    with registered.backend("triton").emulation():
        y = specialised(a, b, lambda p: {**tile, "SPLIT": split, "TURNED": True, "SLOTS": slots}, end)
    want = (a.double() @ b.double() + bias.double()).bfloat16()
    assert torch.equal(z, want)
    assert torch.equal(y, want.relu())


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((600, 5120, 5120), (128, 128, 64, 16, 1)),
        ((665, 6032, 5120), (128, 128, 64, 32, 1)),
        ((216, 7168, 4096), (64, 64, 32, 16, 1)),
        ((400, 5136, 5120), (128, 128, 16, 0, 1)),
        ((144, 7168, 7168), (64, 128, 16, 0, 1)),
        ((310, 3000, 5000), (128, 128, 32, 0, 1)),
        ((80, 5120, 5120), (64, 64, 16, 0, 1)),
        ((288, 13824, 5120), (128, 256, 32, 0, 3)),
    ],
)
def test_rows_fill_tiles_of_two_or_three_instructions(shape: tuple[int, int, int], tile: tuple[int, ...]) -> None:
    config = chosen(shape)
    assert config["TURNED"]
    assert tuple(config[name] for name in ("BLOCK_M", "BLOCK_N", "MORE_N", "LAST_N", "SPLIT")) == tile


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((263, 7432, 3824), (128, 256, 16, 0)),
        ((200, 3000, 7176), (64, 128, 64, 16)),
        ((800, 3000, 3000), (128, 128, 32, 0)),
        ((440, 3000, 5120), (128, 128, 32, 0)),
    ],
)
def test_odd_lines_of_some_rows_are_copied(shape: tuple[int, int, int], tile: tuple[int, ...]) -> None:
    config = chosen(shape)
    assert config["COPIES"]
    assert tuple(config[name] for name in ("BLOCK_M", "BLOCK_N", "MORE_N", "LAST_N")) == tile


def test_what_is_not_copied() -> None:
    """Lines at multiples of 32 bytes; those that few tiles read; columns that are contiguous; products of more rows."""
    shapes = (665, 6032, 5120), (400, 5120, 5120), (1000, 3000, 64), (2000, 3000, 3000)
    assert not any(chosen(shape).get("COPIES") for shape in shapes)
    turned = MatmulShapes(-1, 200, 7176, 3000, (1, 200), (1, 3000), None, torch.bfloat16, "ieee", PLAIN.ending)
    assert not specialised_rule(turned).get("COPIES")


@pytest.mark.parametrize(("split", "activation"), [(1, "none"), (1, "relu"), (2, "relu")])
def test_a_copy_goes_ahead_of_the_product(split: int, activation: str) -> None:
    """Of rows of x that lie apart by an odd multiple of 16 bytes, and have columns behind them that are not read."""
    generator = torch.Generator().manual_seed(3)
    shapes = (2, 75, 344), (136, 328), (136,)
    x, weight, bias = (torch.randint(-4, 5, shape, generator=generator).bfloat16() for shape in shapes)
    x = x[..., :328]
    tile = {"BLOCK_M": 64, "BLOCK_N": 128, "MORE_N": 16, "LAST_N": 0, "BLOCK_K": 64, "GROUP_M": 1, "STAGES": 3}

    def rule(p: MatmulShapes) -> dict[str, int]:
        return {**tile, "SPLIT": split, "TURNED": True, "SLOTS": 1, "COPIES": True}

    def product(a: torch.Tensor, b: torch.Tensor, precision: str, end: EpilogueTensors) -> torch.Tensor:
        return specialised(a, b, rule, end)

    with registered.backend("triton").emulation():
        y, z = linear(product, x, weight, bias, activation, "ieee")
    want = (x.double() @ weight.double().mT + bias.double()).bfloat16()
    assert torch.equal(y, want.relu() if activation == "relu" else want)
    if activation == "relu":
        assert torch.equal(z, want)


def test_three_instructions_leave_registers_and_stages() -> None:
    """Of every tile that takes them: at most 176 sums of a thread, and a ring of four stages."""
    shapes = [(m, k, n) for m in range(65, 1024, 37) for k, n in ((3000, 5120), (5120, 7168), (11008, 4096))]
    third = [config for config in map(chosen, shapes) if config.get("LAST_N")]
    assert third
    for config in third:
        rows = config["BLOCK_N"] + config["MORE_N"] + config["LAST_N"]
        assert max(64, config["BLOCK_M"] // 2) * rows <= 176 * 128
        assert config["STAGES"] >= 4


@pytest.mark.parametrize("slots", [1, 2])
def test_turned_tiles_take_rounds(slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six tiles of two programs: what one leaves is written before the next one's sums take its place."""
    monkeypatch.setattr(_specialised, "processors", lambda device: 2)
    generator = torch.Generator().manual_seed(2)
    a, b = (torch.randint(-4, 5, shape, generator=generator).bfloat16() for shape in ((320, 136), (136, 328)))
    tile = {"BLOCK_M": 128, "BLOCK_N": 128, "MORE_N": 64, "LAST_N": 16, "BLOCK_K": 64, "GROUP_M": 8, "STAGES": 3}
    with registered.backend("triton").emulation():
        c = specialised(a, b, lambda p: {**tile, "SPLIT": 1, "TURNED": True, "SLOTS": slots}, PLAIN)
    assert torch.equal(c, (a.double() @ b.double()).bfloat16())
