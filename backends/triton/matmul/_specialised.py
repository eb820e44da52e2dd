"""The tiled product with the work divided among warps (in Gluon): one loads, two warpgroups multiply.

The loader runs ahead through a ring of STAGES slots and across tiles, so the tensor cores wait for memory only at the
very start. Each multiplier owns half the rows of the tile: 64 x 256 sums are 128 registers in each of its threads.
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

from kernelmux.backends.triton._hopper import barriers, copy_in, copy_out, copy_out_wait, ring
from kernelmux.backends.triton._launch import Ints, Launch, Map, cdiv, plan, processors
from kernelmux.backends.triton.matmul._blocked import Rule, tile_of
from kernelmux.backends.triton.matmul._epilogue import Epilogue, Vector, activated, biased
from kernelmux.backends.triton.matmul._problem import Problem, problem

# Registers per thread: the multipliers hold the sums, the loader next to nothing.
MULTIPLIER_REGISTERS = gl.constexpr(240)
LOADER_REGISTERS = gl.constexpr(24)


@gluon.jit
def _load(
    a_desc, b_desc, a_ring, b_ring, full, empty, M, N, K,
    A_ROWS: gl.constexpr, B_ROWS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    step = 0
    for tile in range(gl.program_id(0), gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N), gl.num_programs(0)):
        tile_m, tile_n = tile_of(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m = tile_m * BLOCK_M
        n = tile_n * BLOCK_N
        for k in range(0, K, BLOCK_K):
            slot = step % STAGES
            mbarrier.wait(empty.index(slot), (step // STAGES + 1) & 1)
            ready = full.index(slot)
            mbarrier.expect(ready, (BLOCK_M + BLOCK_N) * BLOCK_K * 2)
            copy_in(a_desc, [m, k] if A_ROWS else [k, m], ready, a_ring.index(slot))
            copy_in(b_desc, [k, n] if B_ROWS else [n, k], ready, b_ring.index(slot))
            step += 1


@gluon.jit
def _store(desc, m, n, x, half, ROWS: gl.constexpr, BLOCK_N: gl.constexpr):
    """x [ROWS, BLOCK_N] to (m, n), half the columns at a time: the rest of that memory is worth more in the ring."""
    halves = gl.permute(gl.reshape(x, (ROWS, 2, BLOCK_N // 2)), (0, 2, 1))
    left, right = gl.split(halves)
    for side in gl.static_range(2):
        copy_out_wait(0)
        half.store((left if side == 0 else right).to(half.dtype))
        fence_async_shared()
        copy_out(desc, [m, n + side * (BLOCK_N // 2)], half)


@gluon.jit
def _multiply(
    c_desc, bias_ptr, z_desc, a_ring, b_ring, c_half, full, empty, M, N, K, HALF: gl.constexpr,
    BIAS: gl.constexpr, ACTIVATION: gl.constexpr, A_ROWS: gl.constexpr, B_ROWS: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    ROWS: gl.constexpr = BLOCK_M // 2
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    step = 0
    for tile in range(gl.program_id(0), gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N), gl.num_programs(0)):
        tile_m, tile_n = tile_of(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        # [ROWS, BLOCK_N]
        acc = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
        for k in range(0, K, BLOCK_K):
            slot = step % STAGES
            mbarrier.wait(full.index(slot), (step // STAGES) & 1)
            a = a_ring.index(slot) if A_ROWS else a_ring.index(slot).permute((1, 0))
            b = b_ring.index(slot) if B_ROWS else b_ring.index(slot).permute((1, 0))
            acc = warpgroup_mma(a.slice(HALF * ROWS, ROWS, 0), b, acc, is_async=True)
            # The product of the step before is done, so its slot may be filled again.
            acc = warpgroup_mma_wait(1, deps=[acc])
            mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), pred=k > 0)
            step += 1
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES))

        m = tile_m * BLOCK_M + HALF * ROWS
        n = tile_n * BLOCK_N
        acc = biased(acc, bias_ptr, n + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, layout)), N, BIAS)
        if ACTIVATION != "none":
            _store(z_desc, m, n, acc, c_half, ROWS, BLOCK_N)
        _store(c_desc, m, n, activated(acc, ACTIVATION), c_half, ROWS, BLOCK_N)
    copy_out_wait(0)


@gluon.jit
def matmul_specialised_kernel(
    c_desc, a_desc, b_desc, bias_ptr, z_desc, M, N, K, BIAS: gl.constexpr, ACTIVATION: gl.constexpr,
    A_ROWS: gl.constexpr, B_ROWS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    GROUP_M: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    a_ring = ring(a_desc, STAGES)
    b_ring = ring(b_desc, STAGES)
    c_halves = ring(c_desc, 2)
    full = barriers(STAGES, 1)
    empty = barriers(STAGES, 2)
    gl.warp_specialize(
        [
            (_multiply, (c_desc, bias_ptr, z_desc, a_ring, b_ring, c_halves.index(0), full, empty, M, N, K, 0,
                         BIAS, ACTIVATION, A_ROWS, B_ROWS, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES)),
            (_multiply, (c_desc, bias_ptr, z_desc, a_ring, b_ring, c_halves.index(1), full, empty, M, N, K, 1,
                         BIAS, ACTIVATION, A_ROWS, B_ROWS, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES)),
            (_load, (a_desc, b_desc, a_ring, b_ring, full, empty, M, N, K,
                     A_ROWS, B_ROWS, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES)),
        ],
        [4, 1],
        [MULTIPLIER_REGISTERS, LOADER_REGISTERS],
    )  # fmt: skip


def specialised(a: torch.Tensor, b: torch.Tensor, rule: Rule, epilogue: Epilogue) -> torch.Tensor:
    """a @ b with one program per SM, its warps specialised."""
    c = torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device)
    if c.numel():
        _plan(problem(a, b, "ieee", epilogue.ending), rule)(c, a, b, *epilogue.arguments(c))
    return c


@plan
def _plan(p: Problem, rule: Rule) -> Launch:
    config = rule(p)
    block_m, block_n, block_k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    out = _map((p.M, p.N), (p.N, 1), (block_m // 2, block_n // 2), p.dtype)
    maps = (
        out,
        _map((p.M, p.K), p.a_strides, (block_m, block_k), p.dtype),
        _map((p.K, p.N), p.b_strides, (block_k, block_n), p.dtype),
        *(() if p.end.plain else (Vector(), out)),
    )
    programs = min(processors(p.device), cdiv(p.M, block_m) * cdiv(p.N, block_n))
    return Launch(
        matmul_specialised_kernel, (programs,), *p.end.missing, p.M, p.N, p.K, maps=maps, **p.end.meta,
        A_ROWS=p.a_strides[1] == 1, B_ROWS=p.b_strides[1] == 1, num_warps=4, **config,
    )  # fmt: skip


def _map(shape: Ints, strides: Ints, block: Ints, dtype: torch.dtype) -> Map:
    """Of a matrix, or of its transpose where the columns are what is contiguous."""
    if strides[1] != 1:
        shape, strides, block = shape[::-1], strides[::-1], block[::-1]
    element = gl.float16 if dtype == torch.float16 else gl.bfloat16
    return Map(shape, strides, block, gl.NVMMASharedLayout.get_default_for(list(block), element))
