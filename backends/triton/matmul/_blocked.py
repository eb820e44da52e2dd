"""The tiled product over pointers: any strides, any shape; order, tile and pipeline depth are compile-time values."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch import cdiv, launch


@triton.jit
def tile_of(program, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """Row and column of a program's tile, down columns of GROUP_M tiles: neighbours in time share a and b in L2."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    if GROUP_M == 1:
        return program // tiles_n, program % tiles_n
    in_group = GROUP_M * tiles_n
    first = (program // in_group) * GROUP_M
    height = tl.minimum(tiles_m - first, GROUP_M)
    return first + (program % in_group) % height, (program % in_group) // height


@triton.jit
def matmul_blocked_kernel(
    c_ptr, a_ptr, b_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm,
    PRECISION: tl.constexpr, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    tile_m, tile_n = tile_of(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    offs_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    mask_m = (offs_m < M) | EVEN_M
    mask_n = (offs_n < N) | EVEN_N

    # [BLOCK_M, BLOCK_K], [BLOCK_K, BLOCK_N]
    a_ptrs = a_ptr + (offs_m.to(tl.int64)[:, None] * stride_am + offs_k.to(tl.int64)[None, :] * stride_ak)
    b_ptrs = b_ptr + (offs_k.to(tl.int64)[:, None] * stride_bk + offs_n.to(tl.int64)[None, :] * stride_bn)

    # [BLOCK_M, BLOCK_N]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for k in range(0, K, BLOCK_K):
        mask_k = (offs_k < K - k) | EVEN_K
        a = tl.load(a_ptrs, mask=mask_m[:, None] & mask_k[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=mask_k[:, None] & mask_n[None, :], other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk

    c_ptrs = c_ptr + (offs_m.to(tl.int64)[:, None] * stride_cm + offs_n[None, :])
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=mask_m[:, None] & mask_n[None, :])


def blocked(a: torch.Tensor, b: torch.Tensor, precision: str, config: dict[str, Any]) -> torch.Tensor:
    """a @ b with one tile per program."""
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty((M, N), dtype=a.dtype, device=a.device)
    if c.numel() == 0:
        return c
    grid = (cdiv(M, config["BLOCK_M"]) * cdiv(N, config["BLOCK_N"]),)
    launch(
        matmul_blocked_kernel, grid, c, a, b, M, N, K, *a.stride(), *b.stride(), N,
        PRECISION=precision, EVEN_M=M % config["BLOCK_M"] == 0, EVEN_N=N % config["BLOCK_N"] == 0,
        EVEN_K=K % config["BLOCK_K"] == 0, **config,
    )  # fmt: skip
    return c
