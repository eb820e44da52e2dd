"""Tiles of fp32 products on the FP32 pipes, and the rule that chooses one and cuts a product into equal works."""

from __future__ import annotations

from typing import NamedTuple

from kernelmux.backends.triton._launch.card import enough
from kernelmux.backends.triton._launch.launch import Config, cdiv, processors
from kernelmux.backends.triton.matmul._problem import MatmulShapes
from kernelmux.backends.triton.matmul._tiles import rule

STEP = 32  # of K


class SumsTile(NamedTuple):
    """m rows and n columns of so many warps, warps_m of them down the rows, whose lanes have lanes_m rows. stages: of the
    ring. rate: products per microsecond of a multiprocessor with `programs` on it. registers: of a thread, at most."""

    m: int
    n: int
    warps: int
    lanes_m: int
    warps_m: int
    stages: int
    rate: float
    programs: int
    registers: int = 255


class TileCut(NamedTuple):
    """A tile; tiles of one program each, and programs that share the others."""

    tile: SumsTile
    whole: int
    programs: int


# Rates as the times of an H200 leave them: with columns of b contiguous 4096^3 takes 2962 us with the first, 41 x 17912 by
# 17912 x 3008 193 with the second and 254 with the third.
TILES = (
    SumsTile(128, 128, 8, 8, 2, 3, 1.74e5, 1),
    SumsTile(64, 128, 4, 8, 2, 3, 1.55e5, 2),
    SumsTile(64, 64, 4, 4, 2, 4, 1.25e5, 3),
    SumsTile(32, 64, 4, 4, 1, 4, 1.05e5, 4, registers=128),
    SumsTile(16, 128, 4, 2, 1, 4, 0.95e5, 3, registers=168),
    SumsTile(8, 128, 4, 2, 1, 4, 0.6e5, 3, registers=168),
)
# Steps of a program that shares tiles, at least; what a tile takes to begin and end, as a length of K; microseconds of the
# launch that adds parts, and bytes of these per microsecond; of operands.
LEAST_STEPS, FILL, SUM, PARTS, MEMORY = 4, 64, 4.0, 3e6, 3.4e6


def fp32_rule(p: MatmulShapes) -> TileCut:
    """The quickest tile; whether programs share the tiles that whole rounds leave over."""
    sms = processors(p.device)
    choices = [choice for tile in TILES for choice in _cuts(tile, p, sms)]
    return min(choices, key=lambda c: _microseconds(c, p, sms))


def _cuts(t: SumsTile, p: MatmulShapes, sms: int) -> list[TileCut]:
    """No tiles are shared; those are that whole rounds leave over."""
    tiles, room = p.tiles(t.m, t.n), sms * t.programs
    over = tiles % room
    programs = min(room, over * cdiv(p.K, STEP) // LEAST_STEPS)
    return [TileCut(t, tiles, 0), *([TileCut(t, tiles - over, programs)] if programs > over else [])]


def _microseconds(c: TileCut, p: MatmulShapes, sms: int) -> float:
    t, programs = c.tile, c.programs
    tiles, sums, room = p.tiles(t.m, t.n), t.m * t.n, sms * t.programs
    over, added, share = tiles % room, 0.0, 1.0
    if programs:
        share = over / programs
        added = SUM + (programs + over) * sums * 8 / PARTS
        over = programs
    last = cdiv(over, sms)  # programs of a multiprocessor, in the end
    alone = max(1.05, 1 + 0.2 * (8 - last * t.warps)) if last < t.programs else 1.0  # with fewer than there is room for
    work = (tiles // room * t.programs * (p.K + FILL) + last * (share * p.K + FILL) * alone) * sums / t.rate
    moved = 4 * p.products * (p.M * p.K + p.K * p.N + p.M * p.N)
    return max(work, moved / MEMORY + 0.1 * work) + added


# K from which programs that share tiles repay their second kernel where rows of b are contiguous.
LONG = 768


def by_pointers(p: MatmulShapes) -> bool:
    """Whether Triton's own pipeline is quicker, which reads rows of b without conflicts of banks: with few rows of a, and
    with a short K.

    H200, us, so and by the tiles here: 16 x 4096 by 4096 x 14336 97 and 112, 846 x 163 by 163 x 78 9.1 and 13.6, 5003 x 333
    by 333 x 777 101 and 120, 512^3 17.1 and 19.3; 1000^3 65.4 and 63.9.
    """
    return p.layouts[1] == "r" and (p.K < LONG or (p.M <= 32 and p.vectors))


def pointers_rule(p: MatmulShapes) -> Config:
    """Its tile: a small one where larger ones leave multiprocessors without work. Beside that as everywhere."""
    if p.M > 32 and p.tiles(64, 64) <= enough(p.device):
        return {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32, "GROUP_M": 8, "num_warps": 4, "num_stages": 4}
    return rule(p)
