"""fp32 products on the FP32 pipes (in Gluon): c = a b with K contiguous in a, and in b too or N.

Triton's own products read a K-contiguous b from shared memory with bank conflicts: its lines lie one under another. Here
every group of four k's has, in each of eight lines, banks of its own, and a thread reads four k's of a line at once.
Copies to shared memory are asynchronous, of 16 bytes or, where lines of the operand begin or end anywhere, of 8 or 4.

Programs behind those of whole tiles share the K of a tile each: they leave sums, which a second kernel adds in order.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from kernelmux.backends.triton._launch.launch import Launch, cdiv, plan
from kernelmux.backends.triton._rows.row_shared import copy_in
from kernelmux.backends.triton.matmul._blocked import tile_of
from kernelmux.backends.triton.matmul._epilogue import EpilogueTensors, activated, biased
from kernelmux.backends.triton.matmul._fp32_tiles import STEP, TileCut
from kernelmux.backends.triton.matmul._problem import ONE, MatmulShapes, problem
from kernelmux.registry.util.batch_strides import result

_STEP = gl.constexpr(STEP)
SOME = gl.constexpr(16)  # k's of a product: the fewest that Triton 3.6 takes


@gluon.jit
def _copy(ring, base, lines, length, first, end, stride, slot, K_MAJOR: gl.constexpr, LAYOUT: gl.constexpr):
    """A step from `first` on of a tile whose `lines` are those of the operand (K-major), or its columns."""
    if K_MAJOR:
        ks = first + gl.arange(0, _STEP, gl.SliceLayout(0, LAYOUT))
        at = gl.expand_dims(lines.to(gl.int64) * stride, 1) + gl.expand_dims(ks, 0)
        mask = gl.expand_dims(lines < length, 1) & gl.expand_dims(ks < end, 0)
    else:
        ks = first + gl.arange(0, _STEP, gl.SliceLayout(1, LAYOUT))
        at = gl.expand_dims(ks.to(gl.int64) * stride, 1) + gl.expand_dims(lines, 0)
        mask = gl.expand_dims(ks < end, 1) & gl.expand_dims(lines < length, 0)
    copy_in(ring.index(slot), base + at, mask=mask)


@gluon.jit
def leave_sums(acc, c_ptr, bias_ptr, z_ptr, rows, columns, M, N, BIAS: gl.constexpr, ACTIVATION: gl.constexpr):
    at = gl.expand_dims(rows.to(gl.int64) * N, 1) + gl.expand_dims(columns, 0)
    mask = gl.expand_dims(rows < M, 1) & gl.expand_dims(columns < N, 0)
    acc = biased(acc, bias_ptr, columns, N, BIAS)
    if ACTIVATION != "none":
        gl.store(z_ptr + at, acc, mask=mask)
    gl.store(c_ptr + at, activated(acc, ACTIVATION), mask=mask)


@gluon.jit
def fp32_kernel(
    c_ptr, a_ptr, b_ptr, parts_ptr, bias_ptr, z_ptr, M, N, K, stride_a, stride_b,
    a_outer, a_inner, b_outer, b_inner, inner, tiles, whole, share,
    BIAS: gl.constexpr, ACTIVATION: gl.constexpr, UNIT_N: gl.constexpr, UNIT_K: gl.constexpr,
    UNIT_A: gl.constexpr, UNIT_B: gl.constexpr, VECTOR_A: gl.constexpr, VECTOR_B: gl.constexpr,
    B_K_MAJOR: gl.constexpr, BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr, LANES_M: gl.constexpr, WARPS_M: gl.constexpr, STAGES: gl.constexpr,
    GROUP_M: gl.constexpr, BATCHED: gl.constexpr,
):  # fmt: skip
    """whole: tiles of one program each. share: steps of the others, of each program. UNIT_..: what N, K and the strides of
    a and of b are counted in. VECTOR_..: elements of a copy."""
    N *= UNIT_N
    K *= UNIT_K
    stride_a *= UNIT_A
    stride_b *= UNIT_B
    WARPS: gl.constexpr = gl.num_warps()
    EACH: gl.constexpr = 1 if B_K_MAJOR else 4
    SUMS: gl.constexpr = gl.BlockedLayout([1, EACH], [LANES_M, 32 // LANES_M], [WARPS_M, WARPS // WARPS_M], [1, 0])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 0)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, SUMS, 0)
    LINES_A: gl.constexpr = gl.BlockedLayout(
        [1, VECTOR_A], [32 * VECTOR_A // _STEP, _STEP // VECTOR_A], [WARPS, 1], [1, 0]
    )
    LANES_B: gl.constexpr = _STEP // VECTOR_B if B_K_MAJOR else 32
    LINES_B: gl.constexpr = gl.BlockedLayout([1, VECTOR_B], [32 // LANES_B, LANES_B], [WARPS, 1], [1, 0])
    TURNED: gl.constexpr = gl.SwizzledSharedLayout(4, 1, 8, [1, 0])
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])

    a_ring = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_M, _STEP], TURNED)
    if B_K_MAJOR:
        b_ring = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_N, _STEP], TURNED)
    else:
        b_ring = gl.allocate_shared_memory(gl.float32, [STAGES, _STEP, BLOCK_N], PLAIN)

    program = gl.program_id(0)
    steps = gl.cdiv(gl.maximum(program * 0 + K, 1), _STEP)  # a tensor, even of a K that the compiler knows
    at = program.to(gl.int64) * steps
    stop = at + steps
    if program >= whole:
        streamed = (program - whole).to(gl.int64)
        behind = steps.to(gl.int64)
        at = streamed * share + behind * whole
        stop = gl.minimum(at + share, behind * tiles)
    first = (at // steps).to(gl.int32)
    last = ((stop - 1) // steps).to(gl.int32)
    for index in range(first, last + 1):
        tile = index
        a_of = a_ptr
        b_of = b_ptr
        c_of = c_ptr
        if BATCHED:
            each = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
            batch = (tile // each).to(gl.int64)
            tile = tile % each
            a_of += ((batch // inner) * a_outer + (batch % inner) * a_inner) * UNIT_A
            b_of += ((batch // inner) * b_outer + (batch % inner) * b_inner) * UNIT_B
            c_of += batch * M * N
        tile_m, tile_n = tile_of(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m = tile_m * BLOCK_M
        n = tile_n * BLOCK_N
        start = index.to(gl.int64) * steps  # type: ignore[attr-defined]
        begin = gl.maximum(at - start, 0).to(gl.int32) * _STEP
        end = gl.minimum(gl.minimum(stop - start, steps).to(gl.int32) * _STEP, K)
        complete = (at <= start) & (stop >= start + steps)

        rows = m + gl.arange(0, BLOCK_M, gl.SliceLayout(1, LINES_A))
        columns = n + gl.arange(0, BLOCK_N, gl.SliceLayout(1 if B_K_MAJOR else 0, LINES_B))
        for i in gl.static_range(STAGES - 1):
            k = begin + i * _STEP
            _copy(a_ring, a_of, rows, M, k, end, stride_a, i, True, LINES_A)
            _copy(b_ring, b_of, columns, N, k, end, stride_b, i, B_K_MAJOR, LINES_B)
            async_copy.commit_group()

        acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, SUMS)
        slot = 0
        ahead = STAGES - 1
        for k in range(begin, end, _STEP):
            async_copy.wait_group(STAGES - 2)
            later = k + (STAGES - 1) * _STEP
            _copy(a_ring, a_of, rows, M, later, end, stride_a, ahead, True, LINES_A)
            _copy(b_ring, b_of, columns, N, later, end, stride_b, ahead, B_K_MAJOR, LINES_B)
            async_copy.commit_group()
            for i in gl.static_range(_STEP // SOME):
                x = a_ring.index(slot).slice(i * SOME, SOME, 1).load(LEFT)
                if B_K_MAJOR:
                    y = b_ring.index(slot).slice(i * SOME, SOME, 1).permute((1, 0)).load(RIGHT)
                else:
                    y = b_ring.index(slot).slice(i * SOME, SOME, 0).load(RIGHT)
                acc = gl.dot_fma(x, y, acc)
            slot = gl.where(slot == STAGES - 1, 0, slot + 1)
            ahead = gl.where(ahead == STAGES - 1, 0, ahead + 1)
        async_copy.wait_group(0)

        columns_c = gl.arange(0, BLOCK_N, gl.SliceLayout(0, SUMS))
        rows_c = gl.arange(0, BLOCK_M, gl.SliceLayout(1, SUMS))
        if complete:
            leave_sums(acc, c_of, bias_ptr, z_ptr, m + rows_c, n + columns_c, M, N, BIAS, ACTIVATION)
        else:
            place = 2 * (program - whole) + gl.where(index == first, 0, 1)
            left = parts_ptr + place.to(gl.int64) * (BLOCK_M * BLOCK_N)
            gl.store(left + gl.expand_dims(rows_c * BLOCK_N, 1) + gl.expand_dims(columns_c, 0), acc)


@triton.jit
def fp32_end_kernel(
    parts_ptr, c_ptr, bias_ptr, z_ptr, M, N, steps, whole, share,
    BIAS: tl.constexpr, ACTIVATION: tl.constexpr, UNIT_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ROWS: tl.constexpr, GROUP_M: tl.constexpr, BATCHED: tl.constexpr,
):  # fmt: skip
    """Adds the sums of ROWS rows of a tile in the order of K, and ends them."""
    N *= UNIT_N
    index = tl.program_id(0)
    start = index.to(tl.int64) * steps
    first = (start // share).to(tl.int32)
    last = ((start + steps - 1) // share).to(tl.int32)
    if first != last:
        tile = whole + index
        of_c = 0
        if BATCHED:
            each = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
            of_c = (tile // each).to(tl.int64) * M * N
            tile = tile % each
        tile_m, tile_n = tile_of(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        columns = tl.arange(0, BLOCK_N)
        offs_m = tile_m * BLOCK_M + rows
        offs_n = tile_n * BLOCK_N + columns
        mask = (offs_m < M)[:, None] & (offs_n < N)[None, :]
        inside = rows[:, None] * BLOCK_N + columns[None, :]
        acc = tl.zeros([ROWS, BLOCK_N], tl.float32)
        for program in range(first, last + 1):
            first_tile = (program.to(tl.int64) * share) // steps  # type: ignore[attr-defined]
            place = 2 * program + (first_tile != index).to(tl.int32)
            acc += tl.load(parts_ptr + place.to(tl.int64) * (BLOCK_M * BLOCK_N) + inside, mask=mask, other=0.0)
        at = of_c + offs_m.to(tl.int64)[:, None] * N + offs_n[None, :]
        acc = biased(acc, bias_ptr, offs_n, N, BIAS)
        if ACTIVATION != "none":
            tl.store(z_ptr + at, acc, mask=mask)
        tl.store(c_ptr + at, activated(acc, ACTIVATION), mask=mask)


Rule = Callable[[MatmulShapes], TileCut]
WIDEST = 4  # elements of a copy, 16 bytes


def unit_of(*numbers: int) -> int:
    """In how many elements, up to a copy's, these are counted; 1 for multiples of 16, of which Triton knows."""
    return gcd(WIDEST, *numbers) if any(n % 16 for n in numbers) else 1


def fp32(a: torch.Tensor, b: torch.Tensor, rule: Rule, epilogue: EpilogueTensors) -> torch.Tensor:
    """a @ b with K contiguous in a."""
    c = result(a, b)
    if c.numel() == 0:
        return c
    launch, size, finish = _plan(problem(a, b, "ieee", epilogue.ending), rule)
    parts = a.new_empty(size) if size else c
    more = epilogue.arguments(c) or (c, c)
    launch(c, a, b, parts, *more)
    if finish:
        finish(parts, c, *more)
    return c


@plan
def _plan(p: MatmulShapes, rule: Rule) -> tuple[Launch, int, Launch | None]:
    """The launch, how many floats the parts have, and what adds them."""
    t, whole, programs = rule(p)
    tiles, steps = p.tiles(t.m, t.n), max(cdiv(p.K, STEP), 1)
    share = cdiv((tiles - whole) * steps, programs) if tiles > whole else 0
    programs = cdiv((tiles - whole) * steps, share) if share else 0
    k_major = p.layouts[1] == "c"
    batch = p.batch or ONE
    of_a, of_b = (p.a_strides[0], *batch.a), (p.b_strides[1 if k_major else 0], *batch.b)
    # Copies of each operand are as wide as its own lines allow. H200, us, 3438 x 4092 by 4092 x 1238 with copies of 4 bytes
    # of both 970, of 16 of a and 8 of b 878.
    unit_n, unit_k, unit_a, unit_b = 1 if k_major else unit_of(p.N), unit_of(p.K), unit_of(*of_a), unit_of(*of_b)
    vector_a, vector_b = gcd(WIDEST, p.K, *of_a), gcd(WIDEST, p.K if k_major else p.N, *of_b)
    numbers = p.K // unit_k, of_a[0] // unit_a, of_b[0] // unit_b
    apart = *(n // unit_a for n in batch.a), *(n // unit_b for n in batch.b)
    tile = {"BATCHED": p.batch is not None, "BLOCK_N": t.n, "GROUP_M": 8, "UNIT_N": unit_n, **p.end.meta}
    launch = Launch(
        fp32_kernel, (whole + programs,), p.M, p.N // unit_n, *numbers, *apart, batch.inner, tiles, whole, share,
        UNIT_K=unit_k, UNIT_A=unit_a, UNIT_B=unit_b, VECTOR_A=vector_a, VECTOR_B=vector_b, B_K_MAJOR=k_major, BLOCK_M=t.m,
        LANES_M=t.lanes_m, WARPS_M=t.warps_m, STAGES=t.stages, num_warps=t.warps, maxnreg=t.registers, **tile,
    )  # fmt: skip
    if share % steps == 0:  # no tile is cut
        return launch, 0, None
    rows = min(t.m, max(2048 // t.n, 1))
    ending = Launch(
        fp32_end_kernel, (tiles - whole, t.m // rows), p.M, p.N // unit_n, steps, whole, share,
        ROWS=rows, BLOCK_M=t.m, num_warps=4, **tile,
    )  # fmt: skip
    return launch, 2 * programs * t.m * t.n, ending
