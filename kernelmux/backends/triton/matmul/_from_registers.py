"""tf32 products of a row-major b without a copy of it (in Gluon): c^T = b^T a^T, for the left factor may lie in registers.

Tensor cores take fp32 from shared memory only with K contiguous, which the rows of such a b have not. Each of two
multipliers has ROWS columns of b, 64 or 128, as the rows of its product; it reads those of the next step while the
product of this one runs. One warp loads. Which column is which row of the product is free to choose: a thread has 2 or 4
neighbours, which it reads and stores by one access each.
"""

# A tuple here has as many pieces as the tile asks for; mypy takes it for one of its first length.
# mypy: disable-error-code="misc"

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from kernelmux.backends.triton._families.sums import run, sum_first
from kernelmux.backends.triton._launch.hopper import barriers, copy_in, ring
from kernelmux.backends.triton._launch.launch import Ints, Launch, Map, cdiv, plan, processors
from kernelmux.backends.triton.matmul._blocked import Rule, tile_of
from kernelmux.backends.triton.matmul._epilogue import PLAIN, WholeTensor
from kernelmux.backends.triton.matmul._problem import MatmulShapes, problem
from kernelmux.registry.util.batch_strides import result

STEP, BYTES = gl.constexpr(32), gl.constexpr(4)  # of K, a line of 128 bytes; of an element
UNIT, PIECE = gl.constexpr(8), gl.constexpr(64)  # N is a multiple of one; rows of c that are stored at one time
MULTIPLIER_REGISTERS, LOADER_REGISTERS = gl.constexpr(240), gl.constexpr(24)


@gluon.constexpr_function
def _columns(rows, before, lanes, lines):
    """A layout of [lines, rows]: of a line a thread has 2 or 4 neighbours; `lanes` are the lines of two bits of its lane,
    and `before` those of its registers.

    Under the swizzle of 128 bytes, 16-byte chunk c of line k lies at c ^ k % 8. The threads that read in one phase have
    lines 0 to 3 and chunks i and i + 4, which meet all banks.
    """
    if rows == 128:
        own, more, warps = [[0, 1], [0, 2]], [[0, 16], [0, 4], [0, 8]], [[0, 32], [0, 64]]
    else:
        own, more, warps = [[0, 1]], [[0, 2], [0, 16], [0, 4]], [[0, 8], [0, 32]]
    held = [[line, 0] for line in before]
    return gl.DistributedLinearLayout(own + held, [[line, 0] for line in lanes] + more, warps, [], [lines, rows])


@gluon.constexpr_function
def _reading(rows):
    """Of [STEP, rows] of b: lines k % 4 and k % 4 + 4 of every 8, as tensor cores take the left factor."""
    return _columns(rows, [4, 8, 16], [1, 2], 32)


@gluon.constexpr_function
def _storing(rows, lines):
    """Of [lines, rows] of c: as tensor cores leave the sums, neighbours in order."""
    return _columns(rows, [1] + [1 << bit for bit in range(3, lines.bit_length() - 1)], [2, 4], lines)


@gluon.jit
def _as_rows(x):
    """x [STEP, ROWS] of b as the left factor [ROWS, STEP]: bit by bit, so that what a thread has stays with it."""
    if x.shape[1] == 128:
        bits = gl.permute(gl.reshape(x, (x.shape[0], 2, 2, 2, 2, 2, 2, 2)), (6, 1, 2, 7, 4, 5, 3, 0))
    else:
        bits = gl.permute(gl.reshape(x, (x.shape[0], 2, 2, 2, 2, 2, 2)), (1, 3, 6, 4, 2, 5, 0))
    return gl.reshape(bits, (x.shape[1], x.shape[0]))


@gluon.jit
def _as_columns(x):
    """Sums [ROWS, BLOCK_M] as [BLOCK_M, ROWS], in the order of the columns of b: what `_as_rows` did, undone."""
    if x.shape[0] == 128:
        bits = gl.permute(gl.reshape(x, (2, 2, 2, 2, 2, 2, 2, x.shape[1])), (7, 1, 2, 6, 4, 5, 0, 3))
    else:
        bits = gl.permute(gl.reshape(x, (2, 2, 2, 2, 2, 2, x.shape[1])), (6, 0, 4, 1, 3, 5, 2))
    return gl.reshape(bits, (x.shape[1], x.shape[0]))


@gluon.jit
def _halves(x):
    """The upper and the lower half of the rows."""
    return gl.split(gl.permute(gl.reshape(x, (2, x.shape[0] // 2, x.shape[1])), (1, 2, 0)))


@gluon.jit
def _here(x):
    """x, which the compiler must not compute earlier: addresses that wait for the end of a product spill its operands."""
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=1)


@gluon.jit
def _work(index, M, N, K, share, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr):
    """Row and column of a tile, and the part of K with its begin and end."""
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    tile_m, tile_n = tile_of(index % tiles, M, N, BLOCK_M, BLOCK_N, GROUP_M)
    part = index // tiles
    begin = part * share
    return tile_m * BLOCK_M, tile_n * BLOCK_N, part, begin, gl.minimum(begin + share, K)


@gluon.jit
def _load(
    a_desc, b_desc, a_ring, b_ring, full, empty, M, N, K, share, works,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    step = 0
    for index in range(gl.program_id(0), works, gl.num_programs(0)):
        m, n, _, begin, end = _work(index, M, N, K, share, BLOCK_M, BLOCK_N, GROUP_M)
        for k in range(begin, end, STEP):
            slot = step % STAGES
            mbarrier.wait(empty.index(slot), (step // STAGES + 1) & 1)
            ready = full.index(slot)
            mbarrier.expect(ready, (BLOCK_M + BLOCK_N) * STEP * BYTES)
            copy_in(a_desc, [m, k], ready, a_ring.index(slot))
            copy_in(b_desc, [k, n], ready, b_ring.index(slot))
            step += 1


@gluon.jit
def _multiply(
    c_ptr, a_ring, b_ring, full, empty, M, N, K, share, works, PART: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    ROWS: gl.constexpr = BLOCK_N // 2
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 8])
    left: gl.constexpr = gl.DotOperandLayout(0, sums, 1)
    reading: gl.constexpr = _reading(ROWS)
    storing: gl.constexpr = _storing(ROWS, PIECE.value)
    step = 0
    for index in range(gl.program_id(0), works, gl.num_programs(0)):
        m, n, part, begin, end = _work(index, M, N, K, share, BLOCK_M, BLOCK_N, GROUP_M)
        acc = gl.zeros([ROWS, BLOCK_M], gl.float32, sums)
        mbarrier.wait(full.index(step % STAGES), (step // STAGES) & 1)
        columns = b_ring.index(step % STAGES).slice(PART * ROWS, ROWS, 1).load(reading)
        x = gl.convert_layout(_as_rows(columns), left)  # [ROWS, STEP]
        for _ in range(begin + STEP, end, STEP):
            slot = step % STAGES
            acc = warpgroup_mma(x, a_ring.index(slot).permute((1, 0)), acc, is_async=True)
            step += 1
            mbarrier.wait(full.index(step % STAGES), (step // STAGES) & 1)
            columns = b_ring.index(step % STAGES).slice(PART * ROWS, ROWS, 1).load(reading)
            following = gl.convert_layout(_as_rows(columns), left)
            acc, x = warpgroup_mma_wait(0, deps=[acc, x])
            mbarrier.arrive(empty.index(slot))
            x = following
        slot = step % STAGES
        acc = warpgroup_mma(x, a_ring.index(slot).permute((1, 0)), acc, is_async=True)
        step += 1
        acc, x = warpgroup_mma_wait(0, deps=[acc, x])
        mbarrier.arrive(empty.index(slot))

        pieces = (_as_columns(acc),)  # [BLOCK_M, ROWS] in pieces of PIECE rows, which share what addresses them
        if BLOCK_M >= 2 * PIECE:
            pieces = _halves(pieces[0])
        if BLOCK_M >= 4 * PIECE:
            pieces = _halves(pieces[0]) + _halves(pieces[1])
        at = n + PART * ROWS + gl.arange(0, ROWS, gl.SliceLayout(0, storing))
        start = c_ptr + part.to(gl.int64) * M * N
        for i in gl.static_range(BLOCK_M // PIECE):
            rows = _here(m + i * PIECE + gl.arange(0, PIECE, gl.SliceLayout(1, storing)))
            found = gl.convert_layout(pieces[i], storing)
            mask = gl.expand_dims(rows < M, 1) & gl.expand_dims(at < N, 0)
            gl.store(start + gl.expand_dims(rows.to(gl.int64) * N, 1) + gl.expand_dims(at, 0), found, mask=mask)


@gluon.jit
def matmul_from_registers_kernel(
    c_ptr, a_desc, b_desc, M, N, K, share, works,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """share: of K, to each part of it, whose sums have a c of their own; works: tiles times parts. N is in UNITs."""
    N *= UNIT
    a_ring = ring(a_desc, STAGES)
    b_ring = ring(b_desc, STAGES)
    full = barriers(STAGES, 1)
    empty = barriers(STAGES, 2)
    gl.warp_specialize(
        [
            (_multiply, (c_ptr, a_ring, b_ring, full, empty, M, N, K, share, works, 0,
                         BLOCK_M, BLOCK_N, GROUP_M, STAGES)),
            (_multiply, (c_ptr, a_ring, b_ring, full, empty, M, N, K, share, works, 1,
                         BLOCK_M, BLOCK_N, GROUP_M, STAGES)),
            (_load, (a_desc, b_desc, a_ring, b_ring, full, empty, M, N, K, share, works,
                     BLOCK_M, BLOCK_N, GROUP_M, STAGES)),
        ],
        [4, 1],
        [MULTIPLIER_REGISTERS, LOADER_REGISTERS],
    )  # fmt: skip


def from_registers(a: torch.Tensor, b: torch.Tensor, rule: Rule) -> torch.Tensor:
    """a @ b, one matrix each, rows of both contiguous, with one program per SM."""
    c = result(a, b)
    launch, parts, finish = _plan(problem(a, b, "tf32", PLAIN.ending), rule)
    if parts == 1:
        launch(c, a, b)
        return c
    sums = a.new_empty((parts, *c.shape))
    launch(sums, a, b)
    finish(sums, c)
    return c


@plan
def _plan(p: MatmulShapes, rule: Rule) -> tuple[Launch, int, Callable[..., None]]:
    """The launch, into how many parts it cuts K, and what adds several."""
    config = {**rule(p)}
    share = cdiv(cdiv(p.K, config.pop("SPLIT_K")), STEP.value) * STEP.value
    parts = cdiv(p.K, share)
    m, n = config["BLOCK_M"], config["BLOCK_N"]
    works = p.tiles(m, n) * parts
    plain: Any = WholeTensor()
    of_a = _map((p.M, p.K), p.a_strides, (m, STEP.value))
    of_b = _map((p.K, p.N), p.b_strides, (STEP.value, n))
    launch = Launch(
        matmul_from_registers_kernel, (min(processors(p.device), works),), p.M, p.N // UNIT.value, p.K, share, works,
        maps=(plain, of_a, of_b), num_warps=4, **config,
    )  # fmt: skip
    return launch, parts, partial(run, sum_first(p.device, parts, p.M * p.N))


def _map(shape: Ints, strides: Ints, block: Ints) -> Map:
    return Map(shape, strides, block, gl.NVMMASharedLayout.get_default_for(list(block), gl.float32))
