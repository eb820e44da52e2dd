"""The tiled product over tensor descriptors: the copy engine (TMA) fills shared memory, and programs stay on their SM.

One program per SM walks the tiles in grouped order, so that the loads of the next tile start while this one is stored.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch import Ints, Launch, Map, cdiv, plan, processors
from kernelmux.backends.triton.matmul._blocked import Rule, tile_of
from kernelmux.backends.triton.matmul._epilogue import Epilogue, Vector, activated, biased
from kernelmux.backends.triton.matmul._problem import Problem, problem


@triton.jit
def _end(
    c_desc, bias_ptr, z_desc, m, n, sums, N, BIAS: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """Ends sums [BLOCK_M, BLOCK_N] at (m, n) of c."""
    x = biased(sums, bias_ptr, n + tl.arange(0, BLOCK_N), N, BIAS)
    if ACTIVATION != "none":
        z_desc.store([m, n], x.to(z_desc.dtype))
    c_desc.store([m, n], activated(x, ACTIVATION).to(c_desc.dtype))


@triton.jit
def matmul_persistent_kernel(
    c_desc, a_desc, b_desc, bias_ptr, z_desc, M, N, K, BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
    A_ROWS: tl.constexpr, B_ROWS: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, SUBTILES: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    # Flattened, both loops are one pipeline: it does not drain between tiles.
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        tile_m, tile_n = tile_of(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m = tile_m * BLOCK_M
        n = tile_n * BLOCK_N

        # [BLOCK_M, BLOCK_N]
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for k in range(0, K, BLOCK_K):
            a = a_desc.load([m, k]) if A_ROWS else a_desc.load([k, m]).T
            b = b_desc.load([k, n]) if B_ROWS else b_desc.load([n, k]).T
            acc = tl.dot(a, b, acc, input_precision=PRECISION)

        # Half a tile at a time needs half the shared memory, which the pipeline has better use for.
        if SUBTILES == 2:
            halves = tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
            left, right = tl.split(halves)
            _end(c_desc, bias_ptr, z_desc, m, n, left, N, BIAS, ACTIVATION, BLOCK_N // 2)
            _end(c_desc, bias_ptr, z_desc, m, n + BLOCK_N // 2, right, N, BIAS, ACTIVATION, BLOCK_N // 2)
        else:
            _end(c_desc, bias_ptr, z_desc, m, n, acc, N, BIAS, ACTIVATION, BLOCK_N)


def persistent(a: torch.Tensor, b: torch.Tensor, precision: str, rule: Rule, epilogue: Epilogue) -> torch.Tensor:
    """a @ b with one program per SM."""
    c = torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device)
    if c.numel():
        _plan(problem(a, b, precision, epilogue.ending), rule)(c, a, b, *epilogue.arguments(c))
    return c


@plan
def _plan(p: Problem, rule: Rule) -> Launch:
    config = rule(p)
    block_m, block_n, block_k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    out = Map((p.M, p.N), (p.N, 1), (block_m, block_n // config["SUBTILES"]))
    maps = (
        out,
        _map((p.M, p.K), p.a_strides, (block_m, block_k)),
        _map((p.K, p.N), p.b_strides, (block_k, block_n)),
        *(() if p.end.plain else (Vector(), out)),
    )
    programs = min(processors(p.device), cdiv(p.M, block_m) * cdiv(p.N, block_n))
    return Launch(
        matmul_persistent_kernel, (programs,), *p.end.missing, p.M, p.N, p.K, maps=maps, **p.end.meta,
        A_ROWS=p.a_strides[1] == 1, B_ROWS=p.b_strides[1] == 1, PRECISION=p.precision, **config,
    )  # fmt: skip


def _map(shape: Ints, strides: Ints, block: Ints) -> Map:
    """Of a matrix, or of its transpose where the columns are what is contiguous."""
    return Map(shape, strides, block) if strides[1] == 1 else Map(shape[::-1], strides[::-1], block[::-1])
