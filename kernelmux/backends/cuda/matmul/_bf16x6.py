"""matmul of fp32 by tensor cores of bf16, on sm_90: six products of three planes each, as exact as fp32."""

from dataclasses import dataclass
from math import gcd

import torch

from kernelmux.backends.cuda._families import planes
from kernelmux.backends.cuda._families.epilogue import PLAIN, Epilogue, EpilogueKind
from kernelmux.backends.cuda._launch.layout import Layout, layout
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, Tiles, cdiv, multiprocessors
from kernelmux.backends.cuda.matmul import _register_tiled
from kernelmux.backends.cuda.matmul._choice import (
    MatmulProblem,
    Operand,
    Tiling,
    adding,
    choose,
    operand,
    problem,
    split_length,
)
from kernelmux.backends.cuda.matmul._maps import NUMBERS, SWIZZLED, tiles
from kernelmux.registry.util.batch_strides import result
from kernelmux.registry.util.cards import remembered

SOURCE = Source(__file__, "matmul_bf16x6.cu")
STEP = planes.LINE  # of K
MAPS = "products:i32 inner:i32 apart:i32"


@dataclass(frozen=True)
class PlanesTiling(Tiling):
    """Consumer warpgroups of 64 rows and `n` columns each."""

    stages: int

    @property
    def consumers(self) -> int:
        return self.m // 64

    @property
    def threads(self) -> int:
        return 128 * (1 + self.consumers)

    @property
    def shared(self) -> int:
        """Bytes of the stages, of 16 lines of 32 sums and a skew per consumer warp, of the barriers."""
        return self.stages * ((self.m + self.n) * SWIZZLED + 16) + 4 * self.consumers * 16 * 40 * 4


# Rates as of whole rounds of 4096^3 and 3000^3 on an H200.
TILINGS = (PlanesTiling(128, 192, 0.52e6, 5), PlanesTiling(128, 128, 0.54e6, 6))


@dataclass(frozen=True)
class Bf16x6Plan:
    """A product of planes, what adds pieces of K, and the launch that computes all of it if planes cannot hold a number."""

    launch: BoundLaunch
    a: Tiles
    b: Tiles
    shape: tuple[int, ...]
    parts: int
    sum_parts: BoundLaunch | None
    plain: BoundLaunch

    def run(self, a: torch.Tensor, b: torch.Tensor, epilogue: Epilogue) -> torch.Tensor:
        flags = planes.flags_for(a, 2)
        a_planes, b_planes = _split(a, 1, flags, 0), _split(b, 0, flags, 1)
        factors = self.a.of(a_planes), self.b.of(b_planes)
        c = a.new_empty(self.shape)
        if self.sum_parts:
            parts = a.new_empty((self.parts, *self.shape))
            self.launch(*factors, parts)
            self.sum_parts(parts, c, *epilogue.tensors)
        else:
            self.launch(*factors, c, *epilogue.tensors)
        self.plain(flags, a, b, None, c, *epilogue.tensors)
        return c


def bf16x6(a: torch.Tensor, b: torch.Tensor, precision: str, epilogue: Epilogue) -> torch.Tensor:
    if a.numel() == 0 or b.numel() == 0:
        return result(a, b).zero_()
    return _plan(layout(a), layout(b), multiprocessors(a), epilogue.ending).run(a, b, epilogue)


def _split(x: torch.Tensor, k_axis: int, flags: torch.Tensor, index: int) -> torch.Tensor:
    """Planes of matrices along their contiguous axis."""
    down = _runs_down(layout(x), k_axis)
    return planes.split(x.mT if down else x, flags, index)


def _runs_down(x: Layout, k_axis: int) -> bool:
    return operand(x, k_axis).k_major == (k_axis == 0)


def _of_planes(x: Layout, k_axis: int) -> tuple[Layout, int]:
    """The first plane of an operand, as `_split` leaves it, and the length of a plane."""
    down = _runs_down(x, k_axis)
    rows, length = (x.shape[-1], x.shape[-2]) if down else x.shape[-2:]
    plane = planes.plane_length(length)
    lead, apart = [], rows * 3 * plane
    for n, stride in zip(reversed(x.shape[:-2]), reversed(x.strides[:-2]), strict=True):
        expanded = stride == 0 and n > 1
        lead.append(0 if expanded else apart)
        apart *= 1 if expanded else n
    matrix = (1, 3 * plane) if down else (3 * plane, 1)
    return Layout(x.shape, (*reversed(lead), *matrix), torch.bfloat16, 0), plane


@remembered
def _plan(a: Layout, b: Layout, multiprocessors: int, end: EpilogueKind) -> Bf16x6Plan:
    p = problem(_of_planes(a, 1)[0], _of_planes(b, 0)[0])
    tiling, splits = choose(TILINGS, p, multiprocessors)
    return plan(a, b, tiling, splits, multiprocessors, end)


def plan(
    a: Layout, b: Layout, t: PlanesTiling, splits: int, multiprocessors: int, end: EpilogueKind = PLAIN.ending
) -> Bf16x6Plan:
    """The product with a given tiling, K cut into at most `splits` pieces; no extent is 0."""
    (of_a, a_plane), (of_b, b_plane) = _of_planes(a, 1), _of_planes(b, 0)
    p = problem(of_a, of_b)
    k_split = split_length(p.K, splits, STEP)
    parts = cdiv(p.K, k_split)
    ending = end if parts == 1 else PLAIN.ending
    works = t.tiles(p) * parts
    apart = sum(1 << i for i, stride in enumerate((*p.batch.a, *p.batch.b)) if stride) if p.batch else 0
    maps, batch = (MAPS, (p.products, p.batch.inner, apart)) if p.batch else ("", ())
    kernel = SOURCE.kernel(
        "matmul_bf16x6", f"a:map b:map {ending.tensors} {NUMBERS} a_plane:i32 b_plane:i32 {maps}",
        ELEMENT="__nv_bfloat16", OUTPUT="float", C_VECTOR=gcd(4, p.N), BLOCK_N=t.n, CONSUMERS=t.consumers,
        STAGES=t.stages, GROUP_M=16, **p.macros, **ending.macros,
    )  # fmt: skip
    numbers = p.M, p.N, p.K, k_split, works, a_plane, b_plane, *batch
    launch = kernel.bind(min(works, multiprocessors), t.threads, *numbers, shared=t.shared, follows=True)
    a_tiles = _tiles(p, p.left, p.M, t.m if p.left.k_major else STEP, a_plane)
    b_tiles = _tiles(p, p.right, p.N, t.n if p.right.k_major else STEP, b_plane)
    fp32 = p._replace(dtype=torch.float32)
    plain = _register_tiled.guarded(a, b, multiprocessors, end, 2 * planes.BLOCKS * multiprocessors)
    return Bf16x6Plan(launch, a_tiles, b_tiles, p.shape, parts, adding(parts, fp32, end), plain)


def _tiles(p: MatmulProblem, x: Operand, length: int, lines: int, plane: int) -> Tiles:
    """All three planes of an operand."""
    return tiles(p._replace(K=3 * plane), x, length, lines) if x.k_major else tiles(p, x, 3 * plane, lines)
