"""The tiled product over tensor descriptors: the copy engine (TMA) fills shared memory, and programs stay on their SM.

One program per SM walks the tiles in grouped order, so that the loads of the next tile start while this one is stored.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch.launch import Launch, Map, plan, processors
from kernelmux.backends.triton.matmul._blocked import Rule, tile_of
from kernelmux.backends.triton.matmul._epilogue import EpilogueTensors, WholeTensor, activated, biased
from kernelmux.backends.triton.matmul._problem import MatmulShapes, described, problem
from kernelmux.registry.util.batch_strides import result


@triton.jit
def _store(desc, batch, m, n, x, BATCHED: tl.constexpr):
    """x [BLOCK_M, BLOCK_N] to (m, n) of a matrix."""
    if BATCHED:
        desc.store([batch, m, n], x.to(desc.dtype).reshape(1, x.shape[0], x.shape[1]))
    else:
        desc.store([m, n], x.to(desc.dtype))


@triton.jit
def _end(
    c_desc, bias_ptr, z_desc, batch, m, n, sums, N,
    BIAS: tl.constexpr, ACTIVATION: tl.constexpr, BATCHED: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Ends sums [BLOCK_M, BLOCK_N] at (m, n) of c."""
    x = biased(sums, bias_ptr, n + tl.arange(0, BLOCK_N), N, BIAS)
    if ACTIVATION != "none":
        _store(z_desc, batch, m, n, x, BATCHED)
    _store(c_desc, batch, m, n, activated(x, ACTIVATION), BATCHED)


@triton.jit
def _load(
    desc, outer, inner, row, column, ROWS: tl.constexpr, BATCHED: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """The block [HEIGHT, WIDTH] at (row, column) of the matrix at (outer, inner), whose rows are contiguous, or columns."""
    if BATCHED:
        if ROWS:
            x = desc.load([outer, inner, row, column]).reshape(HEIGHT, WIDTH)
        else:
            x = desc.load([outer, inner, column, row]).reshape(WIDTH, HEIGHT).T
    else:
        x = desc.load([row, column]) if ROWS else desc.load([column, row]).T
    return x


@triton.jit
def matmul_persistent_kernel(
    c_desc, a_desc, b_desc, bias_ptr, z_desc, M, N, K, products, inner,
    BIAS: tl.constexpr, ACTIVATION: tl.constexpr, BATCHED: tl.constexpr, A_OUTER: tl.constexpr, A_INNER: tl.constexpr,
    B_OUTER: tl.constexpr, B_INNER: tl.constexpr, A_ROWS: tl.constexpr, B_ROWS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, SUBTILES: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    # Flattened, both loops are one pipeline: it does not drain between tiles.
    for index in tl.range(tl.program_id(0), products * tiles, tl.num_programs(0), flatten=True):
        batch = 0
        tile = index
        if BATCHED:
            batch = index // tiles
            tile = index % tiles
        y = batch // inner
        x = batch % inner
        tile_m, tile_n = tile_of(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m = tile_m * BLOCK_M
        n = tile_n * BLOCK_N

        # [BLOCK_M, BLOCK_N]
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for k in range(0, K, BLOCK_K):
            a = _load(a_desc, y * A_OUTER, x * A_INNER, m, k, A_ROWS, BATCHED, BLOCK_M, BLOCK_K)
            b = _load(b_desc, y * B_OUTER, x * B_INNER, k, n, B_ROWS, BATCHED, BLOCK_K, BLOCK_N)
            acc = tl.dot(a, b, acc, input_precision=PRECISION)

        # Half a tile at a time needs half the shared memory, which the pipeline has better use for.
        if SUBTILES == 2:
            HALF: tl.constexpr = BLOCK_N // 2
            halves = tl.permute(tl.reshape(acc, (BLOCK_M, 2, HALF)), (0, 2, 1))
            left, right = tl.split(halves)
            _end(c_desc, bias_ptr, z_desc, batch, m, n, left, N, BIAS, ACTIVATION, BATCHED, HALF)
            _end(c_desc, bias_ptr, z_desc, batch, m, n + HALF, right, N, BIAS, ACTIVATION, BATCHED, HALF)
        else:
            _end(c_desc, bias_ptr, z_desc, batch, m, n, acc, N, BIAS, ACTIVATION, BATCHED, BLOCK_N)


def persistent(a: torch.Tensor, b: torch.Tensor, precision: str, rule: Rule, epilogue: EpilogueTensors) -> torch.Tensor:
    """a @ b with one program per SM."""
    c = result(a, b)
    if c.numel():
        _plan(problem(a, b, precision, epilogue.ending), rule)(c, a, b, *epilogue.arguments(c))
    return c


@plan
def _plan(p: MatmulShapes, rule: Rule) -> Launch:
    config = rule(p)
    block_m, block_n, block_k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    of_c, of_a, of_b = p.leading
    out = Map(*described((p.M, p.N), (p.N, 1), (block_m, block_n // config["SUBTILES"]), of_c))
    maps = (
        out,
        Map(*described((p.M, p.K), p.a_strides, (block_m, block_k), of_a)),
        Map(*described((p.K, p.N), p.b_strides, (block_k, block_n), of_b)),
        *(() if p.end.plain else (WholeTensor(), out)),
    )
    programs = min(processors(p.device), p.tiles(block_m, block_n))
    return Launch(
        matmul_persistent_kernel, (programs,), *p.end.missing, p.M, p.N, p.K, p.products, p.inner, maps=maps,
        **p.end.meta, **p.places, A_ROWS=p.a_strides[1] == 1, B_ROWS=p.b_strides[1] == 1, PRECISION=p.precision, **config,
    )  # fmt: skip
