"""The tiled product with the work divided among warps (in Gluon): one loads, one or two warpgroups multiply.

The loader runs ahead through a ring of STAGES slots and across tiles, so the tensor cores wait for memory only at the
very start. Each multiplier owns 64 or 128 rows of the tile: 64 x 256 sums are 128 registers in each of its threads. A tile
is a power of two wide, or that and some more columns, which have a ring and sums of their own.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernelmux.backends.triton._launch.hopper import barriers, copy_in, copy_out, copy_out_wait, ring
from kernelmux.backends.triton._launch.launch import Ints, Launch, Map, plan, processors
from kernelmux.backends.triton.matmul._blocked import Rule, tile_of
from kernelmux.backends.triton.matmul._epilogue import EpilogueTensors, WholeTensor, activated, biased
from kernelmux.backends.triton.matmul._problem import Lead, MatmulShapes, described, problem
from kernelmux.registry.util.batch_strides import result

# Registers per thread: the multipliers hold the sums, the loader next to nothing.
MULTIPLIER_REGISTERS = gl.constexpr(240)
LOADER_REGISTERS = gl.constexpr(24)


@gluon.jit
def _copy(desc, outer, inner, line, at, ready, slot, BATCHED: gl.constexpr):
    """The block at (line, at) of the matrix at (outer, inner) into a slot."""
    if BATCHED:
        copy_in(desc, [outer, inner, line, at], ready, slot)
    else:
        copy_in(desc, [line, at], ready, slot)


@gluon.jit
def _matrix(block, BATCHED: gl.constexpr, ROWS: gl.constexpr):
    """A slot as a matrix, transposed unless rows are contiguous."""
    if BATCHED:
        block = block.reshape([block.shape[2], block.shape[3]])
    return block if ROWS else block.permute((1, 0))


@gluon.jit
def _load(
    a_desc, b_desc, more_desc, a_ring, b_ring, more_ring, full, empty, M, N, K, products, inner, BATCHED: gl.constexpr,
    A_OUTER: gl.constexpr, A_INNER: gl.constexpr, B_OUTER: gl.constexpr, B_INNER: gl.constexpr,
    A_ROWS: gl.constexpr, B_ROWS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    MORE_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr, IN_TURN: gl.constexpr,
):  # fmt: skip
    step = 0
    WIDTH: gl.constexpr = BLOCK_N + MORE_N
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, WIDTH)
    for index in range(gl.program_id(0), products * tiles, gl.num_programs(0)):
        y = index // tiles // inner
        x = index // tiles % inner
        tile_m, tile_n = tile_of(index % tiles, M, N, BLOCK_M, WIDTH, GROUP_M)
        m = tile_m * BLOCK_M
        n = tile_n * WIDTH
        early = 8 * x if IN_TURN else 0  # odd rows too from multiples of 32 bytes on
        for first in range(0, K, BLOCK_K):
            k = first - early
            slot = step % STAGES
            mbarrier.wait(empty.index(slot), (step // STAGES + 1) & 1)
            ready = full.index(slot)
            mbarrier.expect(ready, (BLOCK_M + WIDTH) * BLOCK_K * 2)
            _copy(
                a_desc,
                y * A_OUTER,
                x * A_INNER,
                m if A_ROWS else k,
                k if A_ROWS else m,
                ready,
                a_ring.index(slot),
                BATCHED,
            )
            _copy(
                b_desc,
                y * B_OUTER,
                x * B_INNER,
                k if B_ROWS else n,
                n if B_ROWS else k,
                ready,
                b_ring.index(slot),
                BATCHED,
            )
            if MORE_N:
                _copy(
                    more_desc,
                    y * B_OUTER,
                    x * B_INNER,
                    k if B_ROWS else n + BLOCK_N,
                    n + BLOCK_N if B_ROWS else k,
                    ready,
                    more_ring.index(slot),
                    BATCHED,
                )
            step += 1


@gluon.jit
def _store(desc, batch, m, n, x, piece, BATCHED: gl.constexpr):
    """x to (m, n), through shared memory of its size."""
    copy_out_wait(0)
    flat = piece.reshape([x.shape[0], x.shape[1]]) if BATCHED else piece
    flat.store(x.to(piece.dtype))
    fence_async_shared()
    if BATCHED:
        copy_out(desc, [batch, m, n], piece)
    else:
        copy_out(desc, [m, n], piece)


@gluon.jit
def _halves(x):
    """The left and the right half of the columns."""
    return gl.split(gl.permute(gl.reshape(x, (x.shape[0], 2, x.shape[1] // 2)), (0, 2, 1)))


@gluon.jit
def _store_pieces(desc, batch, m, n, x, piece, BATCHED: gl.constexpr, PIECE: gl.constexpr):
    """x to (m, n), PIECE of its columns at a time: the rest of that memory is worth more in the ring."""
    if x.shape[1] == PIECE:
        _store(desc, batch, m, n, x, piece, BATCHED)
    else:
        left, right = _halves(x)
        if x.shape[1] == 2 * PIECE:
            _store(desc, batch, m, n, left, piece, BATCHED)
            _store(desc, batch, m, n + PIECE, right, piece, BATCHED)
        else:
            first, second = _halves(left)
            third, fourth = _halves(right)
            _store(desc, batch, m, n, first, piece, BATCHED)
            _store(desc, batch, m, n + PIECE, second, piece, BATCHED)
            _store(desc, batch, m, n + 2 * PIECE, third, piece, BATCHED)
            _store(desc, batch, m, n + 3 * PIECE, fourth, piece, BATCHED)


@gluon.jit
def _end(
    c_desc, bias_ptr, z_desc, batch, m, n, acc, N, piece, BIAS: gl.constexpr, ACTIVATION: gl.constexpr,
    BATCHED: gl.constexpr, LAYOUT: gl.constexpr, PIECE: gl.constexpr,
):  # fmt: skip
    """Ends the sums acc at (m, n) of c."""
    acc = biased(acc, bias_ptr, n + gl.arange(0, acc.shape[1], layout=gl.SliceLayout(0, LAYOUT)), N, BIAS)
    if ACTIVATION != "none":
        _store_pieces(z_desc, batch, m, n, acc, piece, BATCHED, PIECE)
    _store_pieces(c_desc, batch, m, n, activated(acc, ACTIVATION), piece, BATCHED, PIECE)


@gluon.jit
def _multiply(
    c_desc, bias_ptr, z_desc, a_ring, b_ring, more_ring, piece, full, empty, M, N, K, products, PART: gl.constexpr,
    BIAS: gl.constexpr, ACTIVATION: gl.constexpr, BATCHED: gl.constexpr, A_ROWS: gl.constexpr, B_ROWS: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, MORE_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr,
    STAGES: gl.constexpr, ROWS: gl.constexpr, PIECE: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    more_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, MORE_N if MORE_N else BLOCK_N, 16])
    step = 0
    WIDTH: gl.constexpr = BLOCK_N + MORE_N
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, WIDTH)
    for index in range(gl.program_id(0), products * tiles, gl.num_programs(0)):
        tile_m, tile_n = tile_of(index % tiles, M, N, BLOCK_M, WIDTH, GROUP_M)
        # [ROWS, BLOCK_N], [ROWS, MORE_N]
        acc = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
        if MORE_N:
            more = gl.zeros([ROWS, MORE_N], gl.float32, more_layout)
        for k in range(0, K, BLOCK_K):
            slot = step % STAGES
            mbarrier.wait(full.index(slot), (step // STAGES) & 1)
            a = _matrix(a_ring.index(slot), BATCHED, A_ROWS).slice(PART * ROWS, ROWS, 0)
            b = _matrix(b_ring.index(slot), BATCHED, B_ROWS)
            acc = warpgroup_mma(a, b, acc, is_async=True)
            # The products of the step before are done, so its slot may be filled again.
            if MORE_N:
                more = warpgroup_mma(a, _matrix(more_ring.index(slot), BATCHED, B_ROWS), more, is_async=True)
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

        m = tile_m * BLOCK_M + PART * ROWS
        n = tile_n * WIDTH
        batch = index // tiles
        _end(c_desc, bias_ptr, z_desc, batch, m, n, acc, N, piece, BIAS, ACTIVATION, BATCHED, layout, PIECE)
        if MORE_N:
            n += BLOCK_N
            _end(c_desc, bias_ptr, z_desc, batch, m, n, more, N, piece, BIAS, ACTIVATION, BATCHED, more_layout, PIECE)
    copy_out_wait(0)


@gluon.jit
def matmul_specialised_kernel(
    c_desc, a_desc, b_desc, more_desc, bias_ptr, z_desc, M, N, K, products, inner,
    BIAS: gl.constexpr, ACTIVATION: gl.constexpr, BATCHED: gl.constexpr, A_OUTER: gl.constexpr, A_INNER: gl.constexpr,
    B_OUTER: gl.constexpr, B_INNER: gl.constexpr, A_ROWS: gl.constexpr, B_ROWS: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, MORE_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr,
    STAGES: gl.constexpr, ROWS: gl.constexpr, PIECE: gl.constexpr, IN_TURN: gl.constexpr,
):  # fmt: skip
    """more_desc: of MORE_N columns of b behind BLOCK_N, for tiles whose width is no power of two. IN_TURN: the batch
    is of the even rows of a and of the odd ones."""
    a_ring = ring(a_desc, STAGES)
    b_ring = ring(b_desc, STAGES)
    more_ring = ring(more_desc, STAGES) if MORE_N else b_ring
    pieces = ring(c_desc, BLOCK_M // ROWS)
    full = barriers(STAGES, 1)
    empty = barriers(STAGES, BLOCK_M // ROWS)
    if BLOCK_M == ROWS:
        gl.warp_specialize(
            [
                (_multiply, (c_desc, bias_ptr, z_desc, a_ring, b_ring, more_ring, pieces.index(0), full, empty, M, N, K,
                             products, 0, BIAS, ACTIVATION, BATCHED, A_ROWS, B_ROWS, BLOCK_M, BLOCK_N, MORE_N, BLOCK_K,
                             GROUP_M, STAGES, ROWS, PIECE)),
                (_load, (a_desc, b_desc, more_desc, a_ring, b_ring, more_ring, full, empty, M, N, K, products,
                         inner, BATCHED, A_OUTER, A_INNER, B_OUTER, B_INNER, A_ROWS, B_ROWS,
                         BLOCK_M, BLOCK_N, MORE_N, BLOCK_K, GROUP_M, STAGES, IN_TURN)),
            ],
            [1],
            [LOADER_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_multiply, (c_desc, bias_ptr, z_desc, a_ring, b_ring, more_ring, pieces.index(0), full, empty, M, N, K,
                             products, 0, BIAS, ACTIVATION, BATCHED, A_ROWS, B_ROWS, BLOCK_M, BLOCK_N, MORE_N, BLOCK_K,
                             GROUP_M, STAGES, ROWS, PIECE)),
                (_multiply, (c_desc, bias_ptr, z_desc, a_ring, b_ring, more_ring, pieces.index(1), full, empty, M, N, K,
                             products, 1, BIAS, ACTIVATION, BATCHED, A_ROWS, B_ROWS, BLOCK_M, BLOCK_N, MORE_N, BLOCK_K,
                             GROUP_M, STAGES, ROWS, PIECE)),
                (_load, (a_desc, b_desc, more_desc, a_ring, b_ring, more_ring, full, empty, M, N, K, products,
                         inner, BATCHED, A_OUTER, A_INNER, B_OUTER, B_INNER, A_ROWS, B_ROWS,
                         BLOCK_M, BLOCK_N, MORE_N, BLOCK_K, GROUP_M, STAGES, IN_TURN)),
            ],
            [4, 1],
            [MULTIPLIER_REGISTERS, LOADER_REGISTERS],
        )  # fmt: skip


def specialised(
    a: torch.Tensor, b: torch.Tensor, rule: Rule, epilogue: EpilogueTensors, out: torch.Tensor | None = None
) -> torch.Tensor:
    """a @ b with one program per SM, its warps specialised. out: memory for the result, whose lines may be longer."""
    c = result(a, b) if out is None else out
    if c.numel():
        _plan(problem(a, b, "ieee", epilogue.ending), rule, c.shape[-1])(c, a, b, b, *epilogue.arguments(c))
    return c


@plan
def _plan(p: MatmulShapes, rule: Rule, line: int) -> Launch:
    """line: elements of the result from one row to the next."""
    config = rule(p)
    block_m, block_n, more_n, block_k = (config[name] for name in ("BLOCK_M", "BLOCK_N", "MORE_N", "BLOCK_K"))
    turns = p.in_turn(block_m)
    p = turns or p
    rows, piece = max(64, block_m // 2), more_n or block_n // 2
    _, of_a, of_b = p.leading
    of_c = ((p.products, p.M * line),) if p.batch else ()
    out = _map(p, (p.M, p.N), (line, 1), (rows, piece), of_c)
    if turns:
        out = _map(p, (p.M, p.N), (2 * line, 1), (rows, piece), ((2, line),))
    maps = (
        out,
        _map(p, (p.M, p.K), p.a_strides, (block_m, block_k), of_a),
        _map(p, (p.K, p.N), p.b_strides, (block_k, block_n), of_b),
        _map(p, (p.K, p.N), p.b_strides, (block_k, more_n), of_b) if more_n else WholeTensor(),
        *(() if p.end.plain else (WholeTensor(), out)),
    )
    programs = min(processors(p.device), p.tiles(block_m, block_n + more_n))
    return Launch(
        matmul_specialised_kernel, (programs,), *p.end.missing, p.M, p.N, p.K, p.products, p.inner, maps=maps,
        **p.end.meta, **p.places, A_ROWS=p.a_strides[1] == 1, B_ROWS=p.b_strides[1] == 1, num_warps=4,
        ROWS=rows, PIECE=piece, IN_TURN=turns is not None, **config,
    )  # fmt: skip


def _map(p: MatmulShapes, shape: Ints, strides: Ints, block: Ints, lead: Lead) -> Map:
    """Of a matrix, or of its transpose where the columns are what is contiguous."""
    element = gl.float16 if p.dtype == torch.float16 else gl.bfloat16
    shape, strides, block = described(shape, strides, block, lead)
    return Map(shape, strides, block, gl.NVMMASharedLayout.get_default_for(list(block), element))
