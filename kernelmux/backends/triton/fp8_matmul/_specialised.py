"""fp8_matmul with sums promoted every 128 of K, the work divided among warps (in Gluon): one loads, two groups multiply.

Each multiplier owns 64 rows of the tile and promotes 128 columns at a time, while the other one multiplies: of the wide
tile 64 x 256 sums and 64 x 128 parts are 192 registers in each of its threads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from kernelmux.backends.triton._families.byte_products import ONE
from kernelmux.backends.triton._launch.hopper import barriers, copy_in, ring
from kernelmux.backends.triton._launch.launch import Ints, Launch, Map, cdiv, processors
from kernelmux.backends.triton.matmul._blocked import tile_of
from kernelmux.backends.triton.matmul._epilogue import WholeTensor

ROWS, BLOCK_M, PART_N, LENGTH = gl.constexpr(64), gl.constexpr(128), gl.constexpr(128), gl.constexpr(128)
GROUP_M = gl.constexpr(8)
MULTIPLIER_REGISTERS, LOADER_REGISTERS = gl.constexpr(240), gl.constexpr(24)


class SpecialisedTile(NamedTuple):
    """Columns of a program's tile of 128 rows, 128 or 256, and stages of its ring."""

    columns: int
    stages: int

    def cycles(self, M: int, N: int, K: int, multiprocessors: int) -> int:
        """A rough time: 5 cycles a column for 128 of K, 3000 more for each tile."""
        waves = cdiv(cdiv(M, BLOCK_M.value) * cdiv(N, self.columns), multiprocessors)
        return waves * (cdiv(K, LENGTH.value) * 5 * self.columns + 3000)


WIDE, NARROW = SpecialisedTile(256, 4), SpecialisedTile(128, 6)


def tile_for(M: int, N: int, K: int, multiprocessors: int) -> SpecialisedTile:
    """The quicker one by its `cycles`. H200, 128 x 4096 by 4096 x 14336: 37.5 us with the wide one, 31.1 without."""
    return min((WIDE, NARROW), key=lambda t: t.cycles(M, N, K, multiprocessors))


@gluon.jit
def _load(
    a_desc, b_desc, a_ring, b_ring, full, empty, M, N, K, BLOCK_N: gl.constexpr, STAGES: gl.constexpr
):  # fmt: skip
    step = 0
    for index in range(gl.program_id(0), gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N), gl.num_programs(0)):
        tile_m, tile_n = tile_of(index, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        for k in range(0, K, LENGTH):
            slot = step % STAGES
            mbarrier.wait(empty.index(slot), (step // STAGES + 1) & 1)
            ready = full.index(slot)
            mbarrier.expect(ready, (BLOCK_M + BLOCK_N) * LENGTH)
            copy_in(a_desc, [tile_m * BLOCK_M, k], ready, a_ring.index(slot))
            copy_in(b_desc, [tile_n * BLOCK_N, k], ready, b_ring.index(slot))
            step += 1


@gluon.jit
def _store(c_ptr, sums, left, scale_b_ptr, rows, first, M, N, SCALE_B: gl.constexpr, layout: gl.constexpr):
    """x * left * right, by the product of both where that is a normal number: x overflows only if the result does."""
    columns = first + gl.arange(0, PART_N, gl.SliceLayout(0, layout))
    if SCALE_B == ONE:
        right = gl.zeros([PART_N], gl.float32, gl.SliceLayout(0, layout)) + gl.load(scale_b_ptr)
    else:
        right = gl.load(scale_b_ptr + columns, mask=columns < N, other=0.0)
    left = gl.expand_dims(left, 1)
    right = gl.expand_dims(right, 0)
    both = left * right
    normal = (gl.abs(both) >= 2.0**-126) & (gl.abs(both) < float("inf"))
    one = gl.full([ROWS, PART_N], 1.0, gl.float32, layout)
    sums = sums * gl.where(normal, both, left) * gl.where(normal, one, right)
    rows = gl.expand_dims(rows, 1)
    columns = gl.expand_dims(columns, 0)
    offs = rows.to(gl.int64) * N + columns
    gl.store(c_ptr + offs, sums.to(c_ptr.dtype.element_ty), mask=(rows < M) & (columns < N))


@gluon.jit
def _part(a, lines, nothing):
    """Sums over 128 of K; `nothing` says of what shape."""
    made = warpgroup_mma(a, lines.permute((1, 0)), nothing, use_acc=False, max_num_imprecise_acc=LENGTH, is_async=True)
    return warpgroup_mma_wait(0, deps=[made])


@gluon.jit
def _multiply(
    c_ptr, scale_a_ptr, scale_b_ptr, a_ring, b_ring, full, empty, M, N, K,
    PART: gl.constexpr, SCALE_A: gl.constexpr, SCALE_B: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, PART_N, 32])
    step = 0
    for index in range(gl.program_id(0), gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N), gl.num_programs(0)):
        tile_m, tile_n = tile_of(index, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        nothing = gl.zeros([ROWS, PART_N], gl.float32, layout)
        left = gl.zeros([ROWS, PART_N], gl.float32, layout)
        if BLOCK_N > PART_N:
            right = gl.zeros([ROWS, PART_N], gl.float32, layout)
        for _ in range(0, K, LENGTH):
            slot = step % STAGES
            mbarrier.wait(full.index(slot), (step // STAGES) & 1)
            a = a_ring.index(slot).slice(PART * ROWS, ROWS, 0)
            b = b_ring.index(slot)
            part = _part(a, b.slice(0, PART_N, 0), nothing)
            if BLOCK_N > PART_N:
                left += part
                part = _part(a, b.slice(PART_N, PART_N, 0), nothing)
            mbarrier.arrive(empty.index(slot))
            if BLOCK_N > PART_N:
                right += part
            else:
                left += part
            step += 1
        rows = tile_m * BLOCK_M + PART * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
        if SCALE_A == ONE:
            scale = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, layout)) + gl.load(scale_a_ptr)
        else:
            scale = gl.load(scale_a_ptr + rows, mask=rows < M, other=0.0)
        _store(c_ptr, left, scale, scale_b_ptr, rows, tile_n * BLOCK_N, M, N, SCALE_B, layout)
        if BLOCK_N > PART_N:
            _store(c_ptr, right, scale, scale_b_ptr, rows, tile_n * BLOCK_N + PART_N, M, N, SCALE_B, layout)


@gluon.jit
def fp8_specialised_kernel(
    c_ptr, a_desc, b_desc, scale_a_ptr, scale_b_ptr, M, N, K,
    SCALE_A: gl.constexpr, SCALE_B: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    a_ring = ring(a_desc, STAGES)
    b_ring = ring(b_desc, STAGES)
    full = barriers(STAGES, 1)
    empty = barriers(STAGES, 2)
    gl.warp_specialize(
        [
            (_multiply, (c_ptr, scale_a_ptr, scale_b_ptr, a_ring, b_ring, full, empty, M, N, K, 0, SCALE_A, SCALE_B,
                         BLOCK_N, STAGES)),
            (_multiply, (c_ptr, scale_a_ptr, scale_b_ptr, a_ring, b_ring, full, empty, M, N, K, 1, SCALE_A, SCALE_B,
                         BLOCK_N, STAGES)),
            (_load, (a_desc, b_desc, a_ring, b_ring, full, empty, M, N, K, BLOCK_N, STAGES)),
        ],
        [4, 1],
        [MULTIPLIER_REGISTERS, LOADER_REGISTERS],
    )  # fmt: skip


def specialised(
    device: int, shape: Ints, strides: tuple[Ints, Ints], formats: tuple[Any, Any], scales: Ints, tile: SpecialisedTile
) -> Launch:
    """Of a [M, K] and b [K, N] with K contiguous, of these fp8 types; kinds of scales: one, or one per line."""
    (M, N, K), (of_a, of_b) = shape, strides
    maps: tuple[Any, ...] = (
        WholeTensor(),
        _map((M, K), of_a[0], BLOCK_M.value, formats[0]),
        _map((N, K), of_b[1], tile.columns, formats[1]),
        WholeTensor(),
        WholeTensor(),
    )
    programs = min(processors(device), cdiv(M, BLOCK_M.value) * cdiv(N, tile.columns))
    return Launch(
        fp8_specialised_kernel, (programs,), M, N, K, maps=maps, SCALE_A=scales[0], SCALE_B=scales[1],
        BLOCK_N=tile.columns, STAGES=tile.stages, num_warps=4,
    )  # fmt: skip


def _map(shape: Ints, stride: int, lines: int, element: Any) -> Map:
    block = [lines, LENGTH.value]
    return Map(shape, (stride, 1), block, gl.NVMMASharedLayout.get_default_for(block, element))
