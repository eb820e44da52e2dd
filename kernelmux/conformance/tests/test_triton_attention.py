"""Attention of few queries in Triton: the tiles and splits that calls choose on an H200, and the tile of 128 rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernelmux.registry.util import cards

triton = pytest.importorskip("kernelmux.backends.triton", exc_type=ImportError)
attention = pytest.importorskip("kernelmux.backends.triton.attention", exc_type=ImportError)
problem = pytest.importorskip("kernelmux.backends.triton.attention._problem", exc_type=ImportError).problem


def rule(B: int, H: int, G: int, M: int, N: int) -> tuple[int, ...]:
    """Rows and keys of a tile, and splits."""
    q, k = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((B, H, M, 128), (B, G, N, 128)))
    config = attention.split_keys_rule(problem(q, k, k, False, 0.1, None, "ieee", None))
    return config["BLOCK_M"], config["BLOCK_N"], config["SPLITS"]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((1, 32, 8, 1, 4096), (16, 64, 16)),
        ((8, 32, 8, 1, 16384), (16, 32, 4)),
        ((8, 32, 8, 16, 4096), (64, 64, 2)),
        ((32, 32, 8, 16, 8192), (64, 64, 1)),
        ((16, 16, 2, 16, 16384), (64, 64, 4)),
        ((32, 32, 4, 16, 8192), (128, 64, 1)),
    ],
)
def test_tiles_and_splits(sizes: tuple[int, int, int, int, int], expected: tuple[int, ...]) -> None:
    assert rule(*sizes) == expected


def test_a_tile_of_128_rows() -> None:
    """Four heads of keys fill a GPU of four multiprocessors."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(4, h, n, 64, generator=generator).bfloat16() for h, n in ((8, 13), (1, 150), (1, 150)))
    with cards.standing_for(replace(cards.table()["h200"], processors=4)), triton.BACKEND.emulation():
        p = problem(q, k, v, True, 0.1, None, "ieee", None)
        assert attention.split_keys_rule(p)["BLOCK_M"] == 128
        y, lse = attention.attention_split_keys(q, k, v, True, 0.1, None, "ieee", None)
    s = 0.1 * q.double() @ k.double().mT
    s = s.masked_fill(torch.arange(150) > torch.arange(13)[:, None] + 137, -torch.inf)
    torch.testing.assert_close(y.double(), torch.softmax(s, -1) @ v.double(), atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(lse.double(), torch.logsumexp(s, -1), atol=1e-4, rtol=1e-4)
