"""The kernels of fp32 products as six bf16 products on tensor cores (in Gluon), of planes (`_families/planes.py`).

One warp loads the three planes of both operands, and two warpgroups multiply 64 rows each, in turns. A tensor core cuts its
sums at every step: those of 64 k's, the small products first, begin anew and are added to the others by fp32 instructions.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from kernelmux.backends.triton._families.planes import LINE, SCALE_BACK, found_one
from kernelmux.backends.triton._launch.hopper import barriers, copy_in
from kernelmux.backends.triton.matmul._blocked import multiply_tile, tile_of
from kernelmux.backends.triton.matmul._fp32 import leave_sums

MULTIPLIER_REGISTERS = gl.constexpr(232)
LOADER_REGISTERS = gl.constexpr(40)
STEP = gl.constexpr(LINE)  # k's of sums that begin anew: as planes of lines along K end at a multiple of them


@gluon.jit
def _span(index, whole, share, steps, tiles):
    """The first tile that a work may be of, and the steps of it and those behind it that the work is: all of a tile, or a
    share of those behind `whole`."""
    tile = index
    at = index * 0
    stop = steps
    if index >= whole:
        tile = whole
        at = (index - whole) * share
        stop = gl.minimum(at + share, (tiles - whole) * steps)
    return tile, at, stop


@gluon.jit
def _copy(desc, row, column, plane, apart, ready, slot, ROWS: gl.constexpr):
    """The block at (row, column) of a plane into a slot, transposed unless rows are contiguous."""
    if ROWS:
        copy_in(desc, [row, column + plane * apart], ready, slot)
    else:
        copy_in(desc, [column, row + plane * apart], ready, slot)


@gluon.jit
def _load(
    a_desc, b_desc, a_ring, b_ring, full, empty, M, N, a_apart, b_apart, steps, tiles, whole, share, works,
    A_ROWS: gl.constexpr, B_ROWS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    filled = 0
    for index in range(gl.program_id(0), works, gl.num_programs(0)):
        first, at, stop = _span(index, whole, share, steps, tiles)
        for i in range(at // steps, (stop - 1) // steps + 1):
            begin = gl.maximum(at - i * steps, 0) * STEP
            end = gl.minimum(stop - i * steps, steps) * STEP
            tile_m, tile_n = tile_of(first + i, M, N, BLOCK_M, BLOCK_N, GROUP_M)
            for k in range(begin, end, STEP):
                slot = filled % STAGES
                mbarrier.wait(empty.index(slot), (filled // STAGES + 1) & 1)
                ready = full.index(slot)
                mbarrier.expect(ready, 3 * (BLOCK_M + BLOCK_N) * STEP * 2)
                for p in gl.static_range(3):
                    _copy(a_desc, tile_m * BLOCK_M, k, p, a_apart, ready, a_ring.index(3 * slot + p), A_ROWS)
                    _copy(b_desc, k, tile_n * BLOCK_N, p, b_apart, ready, b_ring.index(3 * slot + p), B_ROWS)
                filled += 1


@gluon.jit
def _plane(ring, slot, plane: gl.constexpr, ROWS: gl.constexpr):
    block = ring.index(3 * slot + plane)
    return block if ROWS else block.permute((1, 0))


@gluon.jit
def _six(
    a_ring, b_ring, slot, acc, first: gl.constexpr, ROWS: gl.constexpr, A_ROWS: gl.constexpr, B_ROWS: gl.constexpr
):
    """The products of a slot, in acc, the small ones first."""
    a1 = _plane(a_ring, slot, 0, A_ROWS).slice(first, ROWS, 0)
    a2 = _plane(a_ring, slot, 1, A_ROWS).slice(first, ROWS, 0)
    a3 = _plane(a_ring, slot, 2, A_ROWS).slice(first, ROWS, 0)
    b1 = _plane(b_ring, slot, 0, B_ROWS)
    b2 = _plane(b_ring, slot, 1, B_ROWS)
    b3 = _plane(b_ring, slot, 2, B_ROWS)
    acc = warpgroup_mma(a3, b1, acc, use_acc=False, is_async=True)
    acc = warpgroup_mma(a1, b3, acc, is_async=True)
    acc = warpgroup_mma(a2, b2, acc, is_async=True)
    acc = warpgroup_mma(a2, b1, acc, is_async=True)
    acc = warpgroup_mma(a1, b2, acc, is_async=True)
    return warpgroup_mma(a1, b1, acc, is_async=True)


@gluon.jit
def _multiply(
    c_ptr, bias_ptr, z_ptr, parts_ptr, a_ring, b_ring, full, empty, turn, M, N, steps, tiles, whole, share, works,
    PART: gl.constexpr, BIAS: gl.constexpr, ACTIVATION: gl.constexpr, A_ROWS: gl.constexpr, B_ROWS: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    ROWS: gl.constexpr = BLOCK_M // 2
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    taken = 0
    for index in range(gl.program_id(0), works, gl.num_programs(0)):
        first, at, stop = _span(index, whole, share, steps, tiles)
        for t in range(at // steps, (stop - 1) // steps + 1):
            begin = gl.maximum(at - t * steps, 0)
            end = gl.minimum(stop - t * steps, steps)
            tile_m, tile_n = tile_of(first + t, M, N, BLOCK_M, BLOCK_N, GROUP_M)
            # [ROWS, BLOCK_N]
            sums = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
            for _ in range(begin, end):
                slot = taken % STAGES
                mbarrier.wait(full.index(slot), (taken // STAGES) & 1)
                mbarrier.wait(turn.index(PART), (taken + 1 - PART) & 1)
                acc = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
                acc = _six(a_ring, b_ring, slot, acc, PART * ROWS, ROWS, A_ROWS, B_ROWS)
                mbarrier.arrive(turn.index(1 - PART))
                acc = warpgroup_mma_wait(0, deps=[acc])
                mbarrier.arrive(empty.index(slot))
                sums += acc * SCALE_BACK
                taken += 1

            rows = PART * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
            columns = gl.arange(0, BLOCK_N, gl.SliceLayout(0, layout))
            if (begin == 0) & (end == steps):
                rows += tile_m * BLOCK_M
                leave_sums(sums, c_ptr, bias_ptr, z_ptr, rows, tile_n * BLOCK_N + columns, M, N, BIAS, ACTIVATION)
            else:
                place = 2 * (index - whole) + gl.where(t == at // steps, 0, 1)
                left = parts_ptr + place.to(gl.int64) * (BLOCK_M * BLOCK_N)
                gl.store(left + gl.expand_dims(rows * BLOCK_N, 1) + gl.expand_dims(columns, 0), sums)


@gluon.jit(do_not_specialize=["M", "steps", "tiles", "whole", "share", "works"])
def bf16x6_kernel(
    c_ptr, a_desc, b_desc, parts_ptr, bias_ptr, z_ptr, M, N, a_apart, b_apart, steps, tiles, whole, share, works,
    BIAS: gl.constexpr, ACTIVATION: gl.constexpr, UNIT_N: gl.constexpr, A_ROWS: gl.constexpr, B_ROWS: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """UNIT_N: what N is counted in. a_apart, b_apart: from one plane to the next. whole: works that are a tile each. share:
    steps of the others, which leave sums of parts of tiles."""
    N *= UNIT_N
    a_ring = gl.allocate_shared_memory(a_desc.dtype, [3 * STAGES] + a_desc.block_type.shape, a_desc.layout)  # noqa: RUF005
    b_ring = gl.allocate_shared_memory(b_desc.dtype, [3 * STAGES] + b_desc.block_type.shape, b_desc.layout)  # noqa: RUF005
    full = barriers(STAGES, 1)
    empty = barriers(STAGES, 2)
    turn = barriers(2, 1)
    gl.inline_asm_elementwise(
        "griddepcontrol.wait; mov.b32 $0, $1;", "=r,r", [M], dtype=gl.int32, is_pure=False, pack=1
    )  # the planes are those of the launch before
    gl.warp_specialize(
        [
            (_multiply, (c_ptr, bias_ptr, z_ptr, parts_ptr, a_ring, b_ring, full, empty, turn, M, N, steps, tiles, whole,
                         share, works, 0, BIAS, ACTIVATION, A_ROWS, B_ROWS, BLOCK_M, BLOCK_N, GROUP_M, STAGES)),
            (_multiply, (c_ptr, bias_ptr, z_ptr, parts_ptr, a_ring, b_ring, full, empty, turn, M, N, steps, tiles, whole,
                         share, works, 1, BIAS, ACTIVATION, A_ROWS, B_ROWS, BLOCK_M, BLOCK_N, GROUP_M, STAGES)),
            (_load, (a_desc, b_desc, a_ring, b_ring, full, empty, M, N, a_apart, b_apart, steps, tiles, whole, share, works,
                     A_ROWS, B_ROWS, BLOCK_M, BLOCK_N, GROUP_M, STAGES)),
        ],
        [4, 1],
        [MULTIPLIER_REGISTERS, LOADER_REGISTERS],
    )  # fmt: skip


@triton.jit(do_not_specialize=["words"])
def otherwise_kernel(
    c_ptr, a_ptr, b_ptr, bias_ptr, z_ptr, flags_ptr, words, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    BIAS: tl.constexpr, ACTIVATION: tl.constexpr, UNIT_M: tl.constexpr, UNIT_N: tl.constexpr, UNIT_K: tl.constexpr,
    UNIT_AM: tl.constexpr, UNIT_AK: tl.constexpr, UNIT_BK: tl.constexpr, UNIT_BN: tl.constexpr, EVEN_M: tl.constexpr,
    EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):  # fmt: skip
    """The product by fp32 instructions, if a number was found that planes do not hold; else nothing."""
    if found_one(flags_ptr, words):
        tiles = tl.cdiv(M * UNIT_M, BLOCK_M) * tl.cdiv(N * UNIT_N, BLOCK_N)
        for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
            multiply_tile(
                tile, c_ptr, a_ptr, b_ptr, bias_ptr, z_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, 0, 0, 0, 0,
                1, BIAS, ACTIVATION, "ieee", False, UNIT_M, UNIT_N, UNIT_K, UNIT_AM, UNIT_AK, UNIT_BK, UNIT_BN, 1, EVEN_M,
                EVEN_N, EVEN_K, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, 1, "",
            )  # fmt: skip
