"""The tiles of matmul in Triton that only large calls choose, and which ones calls do choose."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from kernelmux.backends.triton.matmul import _tiles
from kernelmux.backends.triton.matmul._epilogue import PLAIN, EpilogueTerms
from kernelmux.backends.triton.matmul._problem import MatmulShapes, problem
from kernelmux.backends.triton.matmul._specialised import specialised
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


def test_even_and_odd_rows_take_turns() -> None:
    """Rows of 16 bytes more than a multiple of 32."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-4, 5, shape, generator=generator).bfloat16() for shape in ((130, 136), (136, 136)))
    config = {"BLOCK_M": 64, "BLOCK_N": 128, "MORE_N": 0, "BLOCK_K": 64, "GROUP_M": 8, "STAGES": 4}
    assert problem(a, b, "ieee", PLAIN.ending).in_turn(64)
    with registered.backend("triton").emulation():
        c = specialised(a, b, lambda p: config, PLAIN)
    assert torch.equal(c, (a.double() @ b.double()).bfloat16())


def chosen(m: int, k: int, n: int, end: EpilogueTerms = PLAIN.ending) -> tuple[int, ...]:
    config = _tiles.specialised_rule(MatmulShapes(-1, m, n, k, (k, 1), (n, 1), None, torch.bfloat16, "ieee", end))
    return config["BLOCK_M"], config["BLOCK_N"] + config["MORE_N"], config["GROUP_M"]


def test_the_tile_is_the_quickest_of_those_timed() -> None:
    assert chosen(1000, 3000, 5000) == chosen(3000, 3000, 3000) == (256, 160, 1)
    assert chosen(4096, 4104, 4104) == (256, 192, 1)
    assert chosen(2000, 3000, 4008) == (128, 256, 1)
    assert chosen(4096, 4096, 4096) == (128, 256, 8)
    assert chosen(64, 64, 64) == (64, 64, 8)


def test_an_activation_leaves_registers_for_128_sums() -> None:
    m, n, _ = chosen(4096, 4104, 4104, EpilogueTerms(bias=True, activation="gelu"))
    assert m * n <= 128 * 256
