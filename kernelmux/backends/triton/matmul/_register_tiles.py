"""Tiles of products whose left factor lies in registers: the rule, and what a search may try."""

from __future__ import annotations

from kernelmux.backends.triton._launch.launch import Config, cdiv, processors
from kernelmux.backends.triton.matmul._problem import MatmulShapes
from kernelmux.backends.triton.matmul._spaces import GROUPS, _key, _ring, _too_large
from kernelmux.registry.backend.search_space import Space

# Rows of a, columns of b, stages, products per microsecond of one SM: fitted to all of these tiles for 12 products on an
# H200. By them the rule takes the quickest tile, or one within 6 %.
TILES: tuple[tuple[int, int, int, float], ...] = (
    (256, 128, 4, 1.55e6), (128, 256, 4, 1.19e6), (128, 128, 6, 1.22e6), (64, 256, 5, 0.91e6), (64, 128, 8, 0.94e6),
)  # fmt: skip


def rule(p: MatmulShapes) -> Config:
    """The tile and the shares of K with which whole rounds of all SMs take the least time, and the sum of the shares."""
    sms = processors(p.device)

    def microseconds(choice: tuple[int, int, int, float, int]) -> float:
        m, n, _, rate, split = choice
        work = cdiv(p.tiles(m, n) * split, sms) * (0.5 + m * n * cdiv(p.K, split) / rate)
        added = 4 + split * p.M * p.N * 8 / 4e6 if split > 1 else 0  # at 4 TB/s
        return work + added

    splits = [split for split in range(1, 33) if split == 1 or split * 256 <= p.K]
    m, n, stages, _, split = min(((*tile, split) for tile in TILES for split in splits), key=microseconds)
    return {"BLOCK_M": m, "BLOCK_N": n, "GROUP_M": 8, "STAGES": stages, "SPLIT_K": split}


def _refusal(c: Config, p: MatmulShapes) -> str | None:
    split = c["SPLIT_K"]
    if split > 1 and (p.K // split < 256 or p.tiles(c["BLOCK_M"], c["BLOCK_N"]) * split > processors(p.device)):
        return "K in more shares than multiprocessors need, or of fewer than 256"
    c = {**c, "BLOCK_K": 32, "num_warps": 8}
    return _too_large(c, p) or _ring(c, p, c["STAGES"])


SPACE = Space(
    "triton", "matmul", "from_registers",
    {"BLOCK_M": (64, 128, 256), "BLOCK_N": (128, 256), **GROUPS, "STAGES": (3, 4, 5, 6, 8), "SPLIT_K": (1, 2, 3, 4, 8, 16)},
    rule, _key, _refusal,
)  # fmt: skip
