"""transpose: y[n, m] = x[m, n], bit by bit.

rows     each program reads a stretch of one row and writes it N apart: the stores of a warp touch 32 lines
blocked  each program turns a tile in shared memory, so loads and stores are both contiguous
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch import cdiv, launch
from kernelmux.backends.triton._rows import next_power
from kernelmux.backends.triton._tuned import winner
from kernelmux.registry.backend import Implementation

# Bytes of a tile's side by element size: 128 bytes is a cache line, and wide tiles of narrow types spill.
RULE = {
    1: {"BLOCK_M": 128, "BLOCK_N": 128, "num_warps": 8},
    2: {"BLOCK_M": 64, "BLOCK_N": 128, "num_warps": 4},
    4: {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4},
    8: {"BLOCK_M": 32, "BLOCK_N": 32, "num_warps": 4},
}


@triton.jit
def transpose_rows_kernel(y_ptr, x_ptr, M, N, stride_xm, stride_xn, BLOCK_N: tl.constexpr):
    blocks_n = tl.cdiv(N, BLOCK_N)
    m = (tl.program_id(0) // blocks_n).to(tl.int64)
    offs_n = (tl.program_id(0) % blocks_n) * BLOCK_N + tl.arange(0, BLOCK_N).to(tl.int64)
    x = tl.load(x_ptr + m * stride_xm + offs_n * stride_xn, mask=offs_n < N)
    tl.store(y_ptr + offs_n * M + m, x, mask=offs_n < N)


@triton.jit
def transpose_blocked_kernel(y_ptr, x_ptr, M, N, stride_xm, stride_xn, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    blocks_n = tl.cdiv(N, BLOCK_N)
    offs_m = (tl.program_id(0) // blocks_n) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = (tl.program_id(0) % blocks_n) * BLOCK_N + tl.arange(0, BLOCK_N)

    # [BLOCK_M, BLOCK_N]
    offs = offs_m.to(tl.int64)[:, None] * stride_xm + offs_n.to(tl.int64)[None, :] * stride_xn
    x = tl.load(x_ptr + offs, mask=(offs_m < M)[:, None] & (offs_n < N)[None, :])

    # [BLOCK_N, BLOCK_M]
    offs = offs_n.to(tl.int64)[:, None] * M + offs_m[None, :]
    tl.store(y_ptr + offs, tl.trans(x), mask=(offs_n < N)[:, None] & (offs_m < M)[None, :])


def transpose_rows(x: torch.Tensor) -> torch.Tensor:
    M, N = x.shape
    y = torch.empty((N, M), dtype=x.dtype, device=x.device)
    if y.numel():
        block = min(1024, next_power(N))
        launch(transpose_rows_kernel, (M * cdiv(N, block),), y, x, M, N, *x.stride(), BLOCK_N=block, num_warps=4)
    return y


def transpose_blocked(x: torch.Tensor) -> torch.Tensor:
    M, N = x.shape
    y = torch.empty((N, M), dtype=x.dtype, device=x.device)
    if y.numel():
        config = winner("transpose", f"blocked/{x.element_size()}", x) or RULE[x.element_size()]
        grid = (cdiv(M, config["BLOCK_M"]) * cdiv(N, config["BLOCK_N"]),)
        launch(transpose_blocked_kernel, grid, y, x, M, N, *x.stride(), **config)
    return y


VARIANTS = {
    "rows": Implementation(fn=transpose_rows, idea="contiguous loads, stores N apart"),
    "blocked": Implementation(fn=transpose_blocked, idea="a tile turned in shared memory: both sides contiguous"),
}
