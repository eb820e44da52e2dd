"""fp32 products on tensor cores at the accuracy of fp32: operands are split into three planes of bf16 each, six of whose
products are added (`_families/planes.py`, `_bf16x6_kernel.py`). What planes do not hold is left to fp32 instructions.

H200, 4096^3: 1108 us, of which splitting takes 92 and adding parts 13; 3162 by fp32 instructions, cuBLAS 2856.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from triton.experimental.gluon import language as gl

from kernelmux.backends.triton._families.planes import LINE, apart, split, words
from kernelmux.backends.triton._launch.launch import Config, Ints, Launch, Map, cdiv, plan, processors
from kernelmux.backends.triton.matmul._bf16x6_kernel import bf16x6_kernel, otherwise_kernel
from kernelmux.backends.triton.matmul._epilogue import EpilogueTensors, WholeTensor
from kernelmux.backends.triton.matmul._fp32 import fp32_end_kernel, unit_of
from kernelmux.backends.triton.matmul._problem import MatmulShapes, described, problem
from kernelmux.registry.util.batch_strides import result

ROWS = 128  # of a tile


class PlanesTile(NamedTuple):
    """Columns of a tile, slots of the ring, and products per microsecond of a multiprocessor."""

    columns: int
    stages: int
    rate: float


# Wide tiles read less, narrow ones share the work better. H200, us, with the one and with the other: 4096^3 1108 and 1143,
# 2048 x 1024 by 1024^2 53.5 and 54.1; 1000^3 41 and 36, 256 x 4096 by 4096^2 130 and 125, 5003 x 333 by 333 x 777 80, 64.
TILES = (PlanesTile(128, 2, 0.53e6), PlanesTile(64, 3, 0.5e6))
# What a tile takes to begin and end, as a length of K. Of programs that share tiles: steps of one at least; microseconds of
# the launch that adds parts, and bytes of these per microsecond; what they lose of their time, as they read apart. H200,
# us, of wide tiles, shared and not: 3000^3 470 and 510, 256 x 4096 by 4096^2 130 and 177, 512^3 51 and 30.
FILL, LEAST_STEPS, SUM, PARTS, APART = 80, 4, 4.0, 3e6, 0.1
# Products per microsecond by fp32 instructions, and bytes that splitting moves in one. What launches take beside that is no
# more by planes. H200, us, by both: 512^3 17 and 30, 700^3 32 and 29, 128 x 4096 by 4096^2 115 and 97, 1000^3 64 and 36,
# 20000 x 128 by 128 x 512 85 and 55.
BY_FP32, MEMORY = 21e6, 3.4e6
AT_ONCE = 2  # programs of a multiprocessor that compute what planes do not hold


@dataclass(frozen=True)
class RepaysSplitting:
    """A product large enough to repay splitting its operands; rows: the axis that counts those of the left one."""

    left: str
    rows: str
    text: str = "a product that repays splitting its operands"

    def check(self, call: Any) -> str | None:
        """None, or that the product is too small."""
        M, N, K = (call.axes[axis] for axis in (self.rows, "N", "K"))
        sms = processors(call.arguments[self.left].get_device())
        by_planes = min(cut.microseconds for cut in _cuts(M, N, K, sms)) + 10 * K * (M + N) / MEMORY
        if M * N * K / BY_FP32 >= by_planes:
            return None
        return f"{M} x {N} x {K} is too small to repay splitting the operands"


@dataclass(frozen=True)
class OneFactor:
    """An operand that is one matrix, not a batch."""

    operand: str

    @property
    def text(self) -> str:
        """The condition in a few words."""
        return f"{self.operand} one matrix"

    def check(self, call: Any) -> str | None:
        """None, or that it is a batch."""
        one = call.arguments[self.operand].dim() == 2
        return None if one else f"{self.operand} is a batch of matrices, needs one"


class PlanesCut(NamedTuple):
    """A tile; tiles of one program each, and programs that share the others; how long all take."""

    tile: PlanesTile
    whole: int
    programs: int
    microseconds: float = 0.0


Rule = Callable[[MatmulShapes], PlanesCut]


def bf16x6_rule(p: MatmulShapes) -> PlanesCut:
    """The quickest tile; whether programs share the tiles that whole rounds leave over."""
    return min(_cuts(p.M, p.N, p.K, processors(p.device)), key=lambda cut: cut.microseconds)


def _cuts(M: int, N: int, K: int, sms: int) -> list[PlanesCut]:
    """Of each tile: none are shared; those are that whole rounds leave over."""
    found, steps = [], cdiv(K, LINE)
    for tile in TILES:
        size = ROWS * tile.columns
        tiles, each = cdiv(M, ROWS) * cdiv(N, tile.columns), size / tile.rate
        rounds, over = divmod(tiles, sms)
        alone = (steps * LINE + FILL) * each
        found.append(PlanesCut(tile, tiles, 0, (rounds + (over > 0)) * alone))
        programs = min(sms, over * steps // LEAST_STEPS)
        if programs > over:
            share = cdiv(over * steps, programs) * LINE * each
            added = SUM + (programs + over) * size * 8 / PARTS + APART * share
            found.append(PlanesCut(tile, tiles - over, programs, rounds * alone + share + FILL * each + added))
    return found


def bf16x6(a: torch.Tensor, b: torch.Tensor, rule: Rule, epilogue: EpilogueTensors) -> torch.Tensor:
    """a @ b of fp32 operands, each with an axis contiguous; b is one matrix."""
    c = result(a, b)
    if c.numel() == 0:
        return c
    a = a.reshape(-1, a.shape[-1]) if a.dim() > 2 else a
    launch, size, finish, otherwise = _plan(problem(a, b, "ieee", epilogue.ending), rule)
    of_a, of_b, flags = split(*(x if x.stride(1) == 1 else x.t() for x in (a, b)))
    parts = a.new_empty(size) if size else c
    more = epilogue.arguments(c) or (c, c)
    launch(c, of_a, of_b, parts, *more)
    if finish:
        finish(parts, c, *more)
    otherwise(c, a, b, *more, flags)
    return c


@plan
def _plan(p: MatmulShapes, rule: Rule) -> tuple[Launch, int, Launch | None, Launch]:
    """The launch, how many floats the parts have, what adds them, and what computes it all if need be."""
    (n, stages, _), whole, programs, _ = rule(p)
    m = ROWS
    tile: Config = {"BLOCK_M": m, "BLOCK_N": n, "GROUP_M": 8}
    tiles, steps = p.tiles(m, n), max(cdiv(p.K, LINE), 1)
    share = cdiv((tiles - whole) * steps, programs) if tiles > whole else 0
    programs = cdiv((tiles - whole) * steps, share) if share else 0
    works, unit = whole + programs, unit_of(p.N)
    of_a, a_apart = _map((p.M, p.K), p.a_strides, (m, LINE))
    of_b, b_apart = _map((p.K, p.N), p.b_strides, (LINE, n))
    plain: Any = WholeTensor()
    launch = Launch(
        bf16x6_kernel, (min(processors(p.device), works),), p.M, p.N // unit, a_apart, b_apart, steps, tiles, whole, share,
        works, maps=(plain, of_a, of_b, plain, plain, plain), A_ROWS=p.a_strides[1] == 1, B_ROWS=p.b_strides[1] == 1,
        UNIT_N=unit, STAGES=stages, num_warps=4, launch_pdl=True, **p.end.meta, **tile,
    )  # fmt: skip
    if share % steps == 0:  # no tile is cut
        return launch, 0, None, _otherwise(p)
    rows = min(m, max(2048 // n, 1))
    finish = Launch(
        fp32_end_kernel, (tiles - whole, m // rows), p.M, p.N // unit, steps, whole, share, UNIT_N=unit, ROWS=rows,
        BATCHED=False, num_warps=4, **p.end.meta, **tile,
    )  # fmt: skip
    return launch, 2 * programs * m * n, finish, _otherwise(p)


def _map(shape: Ints, strides: Ints, block: Ints) -> tuple[Map, int]:
    """Of the planes of an operand, or of its transpose where columns are what is contiguous, and how far apart they are."""
    (lines, length), _, block = described(shape, strides, block, ())
    width = apart(length)
    layout = gl.NVMMASharedLayout.get_default_for(list(block), gl.bfloat16)
    return Map((lines, 3 * width), (3 * width, 1), block, layout), width


def _otherwise(p: MatmulShapes) -> Launch:
    """Tiles by pointers, whose programs end at once where all numbers are such that planes hold them: so they are few."""
    numbers, units = p.in_units
    del units["UNIT_BATCH"]
    tile: Config = {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 8, "num_warps": 8, "num_stages": 3}
    even = {"EVEN_M": p.M % 128 == 0, "EVEN_N": p.N % 64 == 0, "EVEN_K": p.K % 32 == 0}
    lines = [described(*x, (1, 1), ())[:2] for x in (((p.M, p.K), p.a_strides), ((p.K, p.N), p.b_strides))]
    count = words(p.device, (lines[0][0], lines[1][0]), (lines[0][1], lines[1][1]))
    programs = min(p.tiles(128, 64), AT_ONCE * processors(p.device))
    meta: Config = {**p.end.meta, **units, **even, **tile}
    return Launch(otherwise_kernel, (programs,), count, *numbers[:7], **meta)
