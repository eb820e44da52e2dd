"""The tiled product with the work divided among warps (in Gluon): one loads, two warpgroups multiply.

The loader runs ahead through a ring of STAGES slots and across tiles, so the tensor cores wait for memory only at the
very start. Each multiplier owns half the rows of the tile: 64 x 256 sums are 128 registers in each of its threads.
"""

from __future__ import annotations

from typing import Any

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernelmux.backends.triton._hopper import barriers, copy_in, copy_out, copy_out_wait, ring
from kernelmux.backends.triton._launch import cdiv, launch, processors
from kernelmux.backends.triton.matmul._blocked import tile_of

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
def _multiply(
    c_desc, a_ring, b_ring, c_half, full, empty, M, N, K, HALF: gl.constexpr,
    A_ROWS: gl.constexpr, B_ROWS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr,
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

        # Half the columns at a time: the other half of that memory is worth more as a stage of the ring.
        halves = gl.permute(gl.reshape(acc, (ROWS, 2, BLOCK_N // 2)), (0, 2, 1))
        left, right = gl.split(halves)
        for side in gl.static_range(2):
            copy_out_wait(0)
            c_half.store((left if side == 0 else right).to(c_half.dtype))
            fence_async_shared()
            copy_out(c_desc, [tile_m * BLOCK_M + HALF * ROWS, tile_n * BLOCK_N + side * (BLOCK_N // 2)], c_half)
    copy_out_wait(0)


@gluon.jit
def matmul_specialised_kernel(
    c_desc, a_desc, b_desc, M, N, K, A_ROWS: gl.constexpr, B_ROWS: gl.constexpr, BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    a_ring = ring(a_desc, STAGES)
    b_ring = ring(b_desc, STAGES)
    c_halves = ring(c_desc, 2)
    full = barriers(STAGES, 1)
    empty = barriers(STAGES, 2)
    gl.warp_specialize(
        [
            (_multiply, (c_desc, a_ring, b_ring, c_halves.index(0), full, empty, M, N, K, 0,
                         A_ROWS, B_ROWS, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES)),
            (_multiply, (c_desc, a_ring, b_ring, c_halves.index(1), full, empty, M, N, K, 1,
                         A_ROWS, B_ROWS, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES)),
            (_load, (a_desc, b_desc, a_ring, b_ring, full, empty, M, N, K,
                     A_ROWS, B_ROWS, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES)),
        ],
        [4, 1],
        [MULTIPLIER_REGISTERS, LOADER_REGISTERS],
    )  # fmt: skip


def specialised(a: torch.Tensor, b: torch.Tensor, config: dict[str, Any]) -> torch.Tensor:
    """a @ b with one program per SM, its warps specialised."""
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty((M, N), dtype=a.dtype, device=a.device)
    if c.numel() == 0:
        return c
    block_m, block_n, block_k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    a_rows, b_rows = a.stride(1) == 1, b.stride(1) == 1
    programs = min(processors(a), cdiv(M, block_m) * cdiv(N, block_n))
    launch(
        matmul_specialised_kernel, (programs,), _descriptor(c, block_m // 2, block_n // 2, True),
        _descriptor(a, block_m, block_k, a_rows), _descriptor(b, block_k, block_n, b_rows), M, N, K,
        A_ROWS=a_rows, B_ROWS=b_rows, num_warps=4, **config,
    )  # fmt: skip
    return c


def _descriptor(x: torch.Tensor, rows: int, columns: int, by_rows: bool) -> TensorDescriptor:
    """Of x, or of its transpose where the columns are what is contiguous."""
    x, block = (x, [rows, columns]) if by_rows else (x.t(), [columns, rows])
    dtype = gl.float16 if x.dtype == torch.float16 else gl.bfloat16
    return TensorDescriptor.from_tensor(x, block, gl.NVMMASharedLayout.get_default_for(block, dtype))
