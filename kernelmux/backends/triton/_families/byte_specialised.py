"""Products of 8-bit operands, the work divided among warps (in Gluon): one loads, two groups multiply 64 rows of a tile.

c [M, N] = a [M, K] @ b [K, N] with K contiguous in both, scaled. Promoted sums go on in fp32 every 128 of K: each group has
parts of 64 x 192 columns, or of 128 at a time, which it adds while the other one multiplies. A tile is a power of two wide,
or that and some more columns, which have a ring and sums of their own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from kernelmux.backends.triton._families.byte_ends import ROWS, end, of_rows, plain_scales
from kernelmux.backends.triton._families.byte_products import copied
from kernelmux.backends.triton._launch.hopper import barriers, copy_in, copy_out_wait, ring
from kernelmux.backends.triton._launch.launch import Ints, Launch, Map, cdiv, plan, processors
from kernelmux.backends.triton.matmul._blocked import tile_of
from kernelmux.backends.triton.matmul._epilogue import WholeTensor
from kernelmux.registry.util import cards

BLOCK_M, LENGTH, GROUP_M = gl.constexpr(128), gl.constexpr(128), gl.constexpr(8)
SHARED = 226 * 1024  # bytes that a block may have on sm_90, less a KiB for its barriers
MULTIPLIER_REGISTERS, LOADER_REGISTERS = gl.constexpr(240), gl.constexpr(24)


class SpecialisedTile(NamedTuple):
    """Columns of a program's tile of 128 rows: a power of two, and another smaller one or none; stages of its ring; the
    cycles that one takes; how many a group multiplies before the other one does. halves: the last tiles, where they would
    fill a round of programs by half at most, are two works each, of half the columns."""

    columns: int
    more: int
    stages: int
    stage: int
    turn: int = 1
    halves: bool = False

    def ring(self) -> int:
        """Bytes of shared memory."""
        size: int = (BLOCK_M.value + self.columns + self.more) * LENGTH.value * self.stages
        return size

    def tiles(self, M: int, N: int) -> int:
        """Of c."""
        return cdiv(M, BLOCK_M.value) * cdiv(N, self.columns + self.more)

    def whole(self, M: int, N: int, multiprocessors: int) -> int:
        """How many of them are one work."""
        tiles = self.tiles(M, N)
        rest = tiles % multiprocessors
        return tiles - rest if self.halves and 2 * rest <= multiprocessors else tiles

    def time(self, shape: Ints, pitches: Ints, multiprocessors: int) -> float:
        """Rough cycles: of whole rounds of programs, and of half a tile in the last one; 2000 begin and end a tile.

        A stage takes as long as L2 to deliver its lines of a and b, if that is longer, which are so many bytes apart.
        Lines that begin in the middle of a sector of 32 bytes take longer.
        """
        M, N, K = shape
        whole, stages = self.whole(M, N, multiprocessors), cdiv(K, LENGTH.value)
        of_a, of_b = (ODD_LINE if pitch % 32 else LINE for pitch in pitches)
        stage: float = max(self.stage, BLOCK_M.value * of_a + (self.columns + self.more) * of_b)
        rest = 0.55 * stage * stages + 2000 if whole < self.tiles(M, N) else 0
        return cdiv(whole, multiprocessors) * (stage * stages + 2000) + rest


class SpecialisedLaunch(NamedTuple):
    """A launch that reads b by two maps."""

    launch: Launch

    def __call__(self, c: Any, a: Any, b: Any, scale_a: Any, scale_b: Any) -> None:
        self.launch(c, a, b, b, scale_a, scale_b)


# H200, at the clock that its power allows: a stage of 256 columns takes 0.84 us promoted and 0.75 us without.
PROMOTED = (
    SpecialisedTile(256, 0, 4, 1150),
    SpecialisedTile(128, 64, 5, 875),
    SpecialisedTile(128, 0, 6, 560, turn=2),
    SpecialisedTile(64, 0, 8, 420, turn=2),
)
SUMS = (
    SpecialisedTile(256, 0, 4, 1024, halves=True),
    SpecialisedTile(128, 64, 5, 840),
    SpecialisedTile(128, 0, 6, 560),
    SpecialisedTile(64, 0, 8, 420),
)


LINE, ODD_LINE = 2.1, 3.3  # cycles
CYCLE, COPY, BYTE = 1 / 1365, 3.0, 1 / 1.8e6  # microseconds: at that clock; of a copy, and of a byte that it moves


def tile_for(shape: Ints, pitches: Ints, multiprocessors: int, *, promotes: bool) -> SpecialisedTile:
    """The one of least `time` for (M, N, K)."""
    return min(PROMOTED if promotes else SUMS, key=lambda t: t.time(shape, pitches, multiprocessors))


def in_sectors(a: torch.Tensor, b: torch.Tensor, *, promotes: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """a [M, K] and b [K, N] with K contiguous; copied to lines of whole sectors where they have none and that pays.

    H200, us with copies and without: fp8 10928 x 2384 by 2384 x 14336, fast, 584.8 and 703.9, 5000 x 1520 by 1520 x 9008,
    fast, 134.1 and 142.0, int8 4281 x 8112 by 8112 x 14336 721.7 and 892.3; fp8 6000 x 3056 by 3056 x 4096, full, 146.7
    and 141.3, 4096 x 1040 by 1040 x 4096, fast, 50.5 and 43.8.
    """
    (M, K), N, pitches = a.shape, b.shape[1], (a.stride(0), b.stride(1))
    if not (pitches[0] % 32 or pitches[1] % 32) or not _copies_repay(a.get_device(), (M, N, K), pitches, promotes):
        return a, b
    return copied(a) if pitches[0] % 32 else a, copied(b) if pitches[1] % 32 else b


@plan
def _copies_repay(device: int, shape: Ints, pitches: Ints, promotes: bool) -> bool:
    if not (9, 0) <= cards.of(device).capability < (10, 0):
        return False
    M, N, K = shape
    now, then = (
        tile_for(shape, given, processors(device), promotes=promotes).time(shape, given, processors(device))
        for given in (pitches, (0, 0))
    )
    copies = sum(COPY + lines * K * BYTE for lines, pitch in zip((M, N), pitches, strict=True) if pitch % 32)
    return (now - then) * CYCLE > copies


@gluon.jit
def _work(index, whole, M, N, WIDTH: gl.constexpr):
    """Where what a program does at one time begins, and whether it is half a tile."""
    rest = gl.maximum(index - whole, 0)
    tile_m, tile_n = tile_of(index - (rest + 1) // 2, M, N, BLOCK_M, WIDTH, GROUP_M)
    return tile_m * BLOCK_M, tile_n * WIDTH + rest % 2 * (WIDTH // 2), index >= whole


@gluon.jit
def _load(
    a_desc, b_desc, more_desc, a_ring, b_ring, more_ring, full, empty, M, N, K, whole, works, BLOCK_N: gl.constexpr,
    MORE_N: gl.constexpr, STAGES: gl.constexpr, TURN: gl.constexpr, HALVES: gl.constexpr,
):  # fmt: skip
    step = 0
    WIDTH: gl.constexpr = BLOCK_N + MORE_N
    for index in range(gl.program_id(0), works, gl.num_programs(0)):
        m, n, half = _work(index, whole, M, N, WIDTH)
        for first in range(0, K, TURN * LENGTH):
            for turn in gl.static_range(TURN):
                k = first + turn * LENGTH
                slot = step % STAGES
                mbarrier.wait(empty.index(slot), (step // STAGES + 1) & 1)
                ready = full.index(slot)
                if HALVES:
                    lines = b_ring.index(slot)
                    if half:
                        mbarrier.expect(ready, (BLOCK_M + BLOCK_N // 2) * LENGTH)
                    else:
                        mbarrier.expect(ready, (BLOCK_M + BLOCK_N) * LENGTH)
                        right = lines.slice(BLOCK_N // 2, BLOCK_N // 2, 0)
                        copy_in(b_desc, [n + BLOCK_N // 2, k], ready, right)
                    copy_in(b_desc, [n, k], ready, lines.slice(0, BLOCK_N // 2, 0))
                else:
                    mbarrier.expect(ready, (BLOCK_M + WIDTH) * LENGTH)
                    copy_in(b_desc, [n, k], ready, b_ring.index(slot))
                copy_in(a_desc, [m, k], ready, a_ring.index(slot))
                if MORE_N:
                    copy_in(more_desc, [n + BLOCK_N, k], ready, more_ring.index(slot))
                step += 1


@gluon.jit
def _await(full, step, STAGES: gl.constexpr):
    """The slot of this step, once it may be multiplied."""
    slot = step % STAGES
    mbarrier.wait(full.index(slot), (step // STAGES) & 1)
    return slot


@gluon.jit
def _product(a, lines, sums, ADD: gl.constexpr):
    """sums + a times these lines of b, under way; not ADD: a new sum."""
    if ADD:
        return warpgroup_mma(a, lines.permute((1, 0)), sums, is_async=True)
    else:
        return warpgroup_mma(a, lines.permute((1, 0)), sums, use_acc=False, max_num_imprecise_acc=LENGTH, is_async=True)


@gluon.jit
def _multiply_promoted(
    c, scale_a_ptr, scale_b_ptr, a_ring, b_ring, more_ring, piece, full, empty, M, N, K, works,
    PART: gl.constexpr, SCALE_A: gl.constexpr, SCALE_B: gl.constexpr, BLOCK_N: gl.constexpr, MORE_N: gl.constexpr,
    STAGES: gl.constexpr, TURN: gl.constexpr, PIECE: gl.constexpr, MAPPED: gl.constexpr,
):  # fmt: skip
    # Sums of 256 columns leave no registers for parts of all: half of them are made at a time.
    PART_N: gl.constexpr = BLOCK_N if BLOCK_N < 128 else 128
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, PART_N, 32])
    more_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, MORE_N if MORE_N else PART_N, 32])
    step = 0
    for index in range(gl.program_id(0), works, gl.num_programs(0)):
        m, n, _ = _work(index, works, M, N, BLOCK_N + MORE_N)
        m += PART * ROWS
        scale = of_rows(scale_a_ptr, m, M, SCALE_A, layout)
        nothing = gl.zeros([ROWS, PART_N], gl.float32, layout)
        acc = gl.zeros([ROWS, PART_N], gl.float32, layout)
        if BLOCK_N > PART_N:
            right = gl.zeros([ROWS, PART_N], gl.float32, layout)
        if MORE_N:
            nothing_more = gl.zeros([ROWS, MORE_N], gl.float32, more_layout)
            more = gl.zeros([ROWS, MORE_N], gl.float32, more_layout)
        for _ in range(0, K, TURN * LENGTH):
            slot = _await(full, step, STAGES)
            a = a_ring.index(slot).slice(PART * ROWS, ROWS, 0)
            part = _product(a, b_ring.index(slot).slice(0, PART_N, 0), nothing, False)
            if BLOCK_N > PART_N:
                part = warpgroup_mma_wait(0, deps=[part])
                acc += part
                part = _product(a, b_ring.index(slot).slice(PART_N, PART_N, 0), nothing, False)
                part = warpgroup_mma_wait(0, deps=[part])
                mbarrier.arrive(empty.index(slot))
                right += part
            elif MORE_N:
                some = _product(a, more_ring.index(slot), nothing_more, False)
                part, some = warpgroup_mma_wait(0, deps=[part, some])
                mbarrier.arrive(empty.index(slot))
                acc += part
                more += some
            else:
                next_slot = _await(full, step + 1, STAGES)
                a = a_ring.index(next_slot).slice(PART * ROWS, ROWS, 0)
                other = _product(a, b_ring.index(next_slot), nothing, False)
                part = warpgroup_mma_wait(1, deps=[part])
                mbarrier.arrive(empty.index(slot))
                acc += part
                other = warpgroup_mma_wait(0, deps=[other])
                mbarrier.arrive(empty.index(next_slot))
                acc += other
            step += TURN
        plain = plain_scales(scale, gl.float32)
        end(c, acc, scale, plain, scale_b_ptr, m, n, M, N, piece, SCALE_B, layout, PIECE, MAPPED)
        if BLOCK_N > PART_N:
            end(c, right, scale, plain, scale_b_ptr, m, n + PART_N, M, N, piece, SCALE_B, layout, PIECE, MAPPED)
        if MORE_N:
            same = gl.convert_layout(scale, gl.SliceLayout(1, more_layout))
            at = n + BLOCK_N
            end(c, more, same, plain, scale_b_ptr, m, at, M, N, piece, SCALE_B, more_layout, PIECE, MAPPED)
    if MAPPED:
        copy_out_wait(0)


@gluon.jit
def _one_work(
    c, scale_a_ptr, scale_b_ptr, a_ring, b_ring, more_ring, piece, full, empty, M, N, K, m, n, step,
    PART: gl.constexpr, SCALE_A: gl.constexpr, SCALE_B: gl.constexpr, BLOCK_N: gl.constexpr, MORE_N: gl.constexpr,
    STAGES: gl.constexpr, PIECE: gl.constexpr, MAPPED: gl.constexpr,
):  # fmt: skip
    """Of BLOCK_N columns of the ring, and more; returns the next step."""
    NUMBER: gl.constexpr = gl.int32 if a_ring.dtype == gl.int8 else gl.float32
    INSTRUCTION_N: gl.constexpr = 128 if NUMBER == gl.int32 and BLOCK_N > 128 else BLOCK_N  # no integers of 256
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, INSTRUCTION_N, 32])
    more_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, MORE_N if MORE_N else BLOCK_N, 32])
    m += PART * ROWS
    scale = of_rows(scale_a_ptr, m, M, SCALE_A, layout)
    acc = gl.zeros([ROWS, BLOCK_N], NUMBER, layout)
    if MORE_N:
        more = gl.zeros([ROWS, MORE_N], NUMBER, more_layout)
    for k in range(0, K, LENGTH):
        slot = _await(full, step, STAGES)
        a = a_ring.index(slot).slice(PART * ROWS, ROWS, 0)
        acc = _product(a, b_ring.index(slot).slice(0, BLOCK_N, 0), acc, True)
        # The products of the step before are done, so its slot may be filled again.
        if MORE_N:
            more = _product(a, more_ring.index(slot), more, True)
            acc, more = warpgroup_mma_wait(2, deps=[acc, more])
        else:
            acc = warpgroup_mma_wait(1, deps=[acc])
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), pred=k > 0)
        step += 1
    if MORE_N:
        acc, more = warpgroup_mma_wait(0, deps=[acc, more])
    else:
        acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES))
    plain = plain_scales(scale, NUMBER)
    end(c, acc, scale, plain, scale_b_ptr, m, n, M, N, piece, SCALE_B, layout, PIECE, MAPPED)
    if MORE_N:
        same = gl.convert_layout(scale, gl.SliceLayout(1, more_layout))
        at = n + BLOCK_N
        end(c, more, same, plain, scale_b_ptr, m, at, M, N, piece, SCALE_B, more_layout, PIECE, MAPPED)
    return step


@gluon.jit
def _multiply(
    c, scale_a_ptr, scale_b_ptr, a_ring, b_ring, more_ring, piece, full, empty, M, N, K, whole, works,
    PART: gl.constexpr, SCALE_A: gl.constexpr, SCALE_B: gl.constexpr, BLOCK_N: gl.constexpr, MORE_N: gl.constexpr,
    STAGES: gl.constexpr, HALVES: gl.constexpr, PIECE: gl.constexpr, MAPPED: gl.constexpr,
):  # fmt: skip
    step = 0
    for index in range(gl.program_id(0), whole, gl.num_programs(0)):
        m, n, _ = _work(index, whole, M, N, BLOCK_N + MORE_N)
        step = _one_work(c, scale_a_ptr, scale_b_ptr, a_ring, b_ring, more_ring, piece, full, empty, M, N, K, m, n,
                         step, PART, SCALE_A, SCALE_B, BLOCK_N, MORE_N, STAGES, PIECE, MAPPED)  # fmt: skip
    if HALVES:
        # There are whole rounds of whole tiles, and one of halves.
        index = whole + gl.program_id(0)
        if index < works:
            m, n, _ = _work(index, whole, M, N, BLOCK_N)
            _one_work(c, scale_a_ptr, scale_b_ptr, a_ring, b_ring, more_ring, piece, full, empty, M, N, K, m, n,
                      step, PART, SCALE_A, SCALE_B, BLOCK_N // 2, 0, STAGES, PIECE, MAPPED)  # fmt: skip
    if MAPPED:
        copy_out_wait(0)


@gluon.jit
def byte_specialised_kernel(
    c, a_desc, b_desc, more_desc, scale_a_ptr, scale_b_ptr, M, N, K, whole, works,
    SCALE_A: gl.constexpr, SCALE_B: gl.constexpr, PROMOTES: gl.constexpr, BLOCK_N: gl.constexpr, MORE_N: gl.constexpr,
    STAGES: gl.constexpr, TURN: gl.constexpr, HALVES: gl.constexpr, PIECE: gl.constexpr, MAPPED: gl.constexpr,
):  # fmt: skip
    a_ring = ring(a_desc, STAGES)
    b_ring = gl.allocate_shared_memory(b_desc.dtype, [STAGES, BLOCK_N, LENGTH], b_desc.layout)
    more_ring = ring(more_desc, STAGES) if MORE_N else b_ring
    if MAPPED:
        pieces = ring(c, 2)
    else:
        skewed: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
        pieces = gl.allocate_shared_memory(c.dtype.element_ty, [2, ROWS, PIECE], skewed)
    full = barriers(STAGES, 1)
    empty = barriers(STAGES, 2)
    if PROMOTES:
        gl.warp_specialize(
            [
                (_multiply_promoted, (c, scale_a_ptr, scale_b_ptr, a_ring, b_ring, more_ring, pieces.index(0), full,
                                      empty, M, N, K, works, 0, SCALE_A, SCALE_B, BLOCK_N, MORE_N, STAGES, TURN,
                                      PIECE, MAPPED)),
                (_multiply_promoted, (c, scale_a_ptr, scale_b_ptr, a_ring, b_ring, more_ring, pieces.index(1), full,
                                      empty, M, N, K, works, 1, SCALE_A, SCALE_B, BLOCK_N, MORE_N, STAGES, TURN,
                                      PIECE, MAPPED)),
                (_load, (a_desc, b_desc, more_desc, a_ring, b_ring, more_ring, full, empty, M, N, K, whole, works,
                         BLOCK_N, MORE_N, STAGES, TURN, HALVES)),
            ],
            [4, 1],
            [MULTIPLIER_REGISTERS, LOADER_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_multiply, (c, scale_a_ptr, scale_b_ptr, a_ring, b_ring, more_ring, pieces.index(0), full, empty, M, N,
                             K, whole, works, 0, SCALE_A, SCALE_B, BLOCK_N, MORE_N, STAGES, HALVES, PIECE, MAPPED)),
                (_multiply, (c, scale_a_ptr, scale_b_ptr, a_ring, b_ring, more_ring, pieces.index(1), full, empty, M, N,
                             K, whole, works, 1, SCALE_A, SCALE_B, BLOCK_N, MORE_N, STAGES, HALVES, PIECE, MAPPED)),
                (_load, (a_desc, b_desc, more_desc, a_ring, b_ring, more_ring, full, empty, M, N, K, whole, works,
                         BLOCK_N, MORE_N, STAGES, TURN, HALVES)),
            ],
            [4, 1],
            [MULTIPLIER_REGISTERS, LOADER_REGISTERS],
        )  # fmt: skip


def specialised(
    device: int, shape: Ints, strides: tuple[Ints, Ints], formats: tuple[Any, Any], out: Any, scales: Ints, promotes: bool,
    tile: SpecialisedTile,
) -> SpecialisedLaunch:  # fmt: skip
    """Of a [M, K] and b [K, N] with K contiguous, of these types; kinds of scales: none, one, or one per line."""
    (M, N, K), (of_a, of_b) = shape, strides
    size = out.primitive_bitwidth // 8
    mapped = N * size % 16 == 0
    whole, tiles = tile.whole(M, N, processors(device)), tile.tiles(M, N)
    works = 2 * tiles - whole
    halves, columns = works > tiles, tile.columns // 2 if works > tiles else tile.columns
    piece = min(tile.more or columns, 128 if promotes else 256, 256 // size)
    if tile.ring() + 2 * ROWS.value * piece * size > SHARED:  # of fp32 beside the longest ring
        piece //= 2
    maps: tuple[Any, ...] = (
        _map((M, N), N, (ROWS.value, piece), out) if mapped else WholeTensor(),
        _map((M, K), of_a[0] if M > 1 else cdiv(K, 16) * 16, (BLOCK_M.value, LENGTH.value), formats[0]),
        _map((N, K), of_b[1], (columns, LENGTH.value), formats[1]),
        _map((N, K), of_b[1], (tile.more, LENGTH.value), formats[1]) if tile.more else WholeTensor(),
        WholeTensor(),
        WholeTensor(),
    )
    launch = Launch(
        byte_specialised_kernel, (min(processors(device), works),), M, N, K, whole, works, maps=maps, SCALE_A=scales[0],
        SCALE_B=scales[1], PROMOTES=promotes, BLOCK_N=tile.columns, MORE_N=tile.more, STAGES=tile.stages,
        TURN=tile.turn, HALVES=halves, PIECE=piece, MAPPED=mapped, num_warps=4,
    )  # fmt: skip
    return SpecialisedLaunch(launch)


def _map(shape: Ints, stride: int, block: Ints, element: Any) -> Map:
    return Map(shape, (stride, 1), block, gl.NVMMASharedLayout.get_default_for(list(block), element))
