"""transpose: y[n, m] = x[m, n], bit by bit.

rows     each program reads a stretch of one row and writes it N apart: the stores of a warp touch 32 lines
blocked  each program turns a tile in shared memory, so loads and stores are both contiguous
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._families.elementwise import ACCESS_BYTES
from kernelmux.backends.triton._launch.launch import Config, Ints, Launch, cdiv, plan, processors
from kernelmux.backends.triton._rows.rows import next_power
from kernelmux.registry.backend import Implementation

# Tile along M and N and warps by element size: 80, 90 and 93 % of the copy rate of an H200 on 8192 x 8192 elements of 1, 2
# and 4 bytes.
_TILES = {1: (128, 128, 8), 2: (128, 128, 8), 4: (64, 64, 8), 8: (32, 32, 4)}
# Where rows do not all start at 16 bytes: accesses of one element, and long pieces of the output's rows. H200, cold L2:
# 8191 x 8193 bytes took 71.4 us, 76.6 by 128 x 64, 96.4 by 8 warps; 933 x 97792 of 4 bytes 268.7, 317.5 by 128 x 64.
_ODD_TILES = {1: (256, 32, 4), 2: (256, 32, 4), 4: (256, 32, 8), 8: (128, 64, 8)}
_SMALL_TILES = ((64, 64, 4), (64, 32, 4), (32, 32, 4))
_BLOCKS = 2  # programs per multiprocessor, for which tiles become smaller
# Rows, or columns, at most, for which tiles are small at once: of 37 x 50001 bf16 a tile of 64 x 32 took 6.7 us, of
# 64 x 128 7.2 us.
_NARROW = 64


@triton.jit
def transpose_rows_kernel(y_ptr, x_ptr, M, N, stride_xm, stride_xn, BLOCK_N: tl.constexpr):
    blocks_n = tl.cdiv(N, BLOCK_N)
    m = (tl.program_id(0) // blocks_n).to(tl.int64)
    offs_n = (tl.program_id(0) % blocks_n) * BLOCK_N + tl.arange(0, BLOCK_N).to(tl.int64)
    x = tl.load(x_ptr + m * stride_xm + offs_n * stride_xn, mask=offs_n < N)
    tl.store(y_ptr + offs_n * M + m, x, mask=offs_n < N)


@triton.jit
def transpose_blocked_kernel(
    y_ptr, x_ptr, M, N, stride_xm, stride_xn,
    UNIT_M: tl.constexpr, UNIT_N: tl.constexpr, UNIT_XM: tl.constexpr, UNIT_XN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Lengths and strides are in units of so many elements."""
    M *= UNIT_M
    N *= UNIT_N
    blocks_n = tl.cdiv(N, BLOCK_N)
    offs_m = (tl.program_id(0) // blocks_n) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = (tl.program_id(0) % blocks_n) * BLOCK_N + tl.arange(0, BLOCK_N)

    # [BLOCK_M, BLOCK_N]
    offs = offs_m.to(tl.int64)[:, None] * (stride_xm * UNIT_XM) + offs_n.to(tl.int64)[None, :] * (stride_xn * UNIT_XN)
    x = tl.load(x_ptr + offs, mask=(offs_m < M)[:, None] & (offs_n < N)[None, :])

    # [BLOCK_N, BLOCK_M]
    offs = offs_n.to(tl.int64)[:, None] * M + offs_m[None, :]
    tl.store(y_ptr + offs, tl.trans(x), mask=(offs_n < N)[:, None] & (offs_m < M)[None, :])


def transpose_rows(x: torch.Tensor) -> torch.Tensor:
    return _transpose(x, False)


def transpose_blocked(x: torch.Tensor) -> torch.Tensor:
    return _transpose(x, True)


def _transpose(x: torch.Tensor, blocked: bool) -> torch.Tensor:
    y = torch.empty(x.shape[::-1], dtype=x.dtype, device=x.device)
    if y.numel():
        _plan(x.get_device(), x.shape, x.stride(), x.element_size(), blocked)(y, x)
    return y


@plan
def _plan(device: int, shape: Ints, strides: Ints, itemsize: int, blocked: bool) -> Launch:
    M, N = shape
    if blocked:
        config = _tile(shape, strides, itemsize, processors(device))
        grid = (cdiv(M, config["BLOCK_M"]) * cdiv(N, config["BLOCK_N"]),)
        units = _units(shape, strides, ACCESS_BYTES // itemsize)
        given = (n // unit for n, unit in zip((*shape, *strides), units.values(), strict=True))
        return Launch(transpose_blocked_kernel, grid, *given, **units, **config)
    block = min(1024, next_power(N))
    return Launch(transpose_rows_kernel, (M * cdiv(N, block),), M, N, *strides, BLOCK_N=block, num_warps=4)


def _tile(shape: Ints, strides: Ints, itemsize: int, processors: int) -> Config:
    """The first tile of which every multiprocessor has _BLOCKS, or the last; no higher and wider than the matrix."""
    M, N = shape
    odd = any(n * itemsize % ACCESS_BYTES for n in (M, *strides) if n != 1)
    large = (_ODD_TILES if odd else _TILES)[itemsize]
    config: Config = {}
    for m, n, warps in _SMALL_TILES[1:] if min(M, N) <= _NARROW else (large, *_SMALL_TILES):
        area = m * n
        m = min(m, next_power(M))
        n = min(area // m, next_power(N))
        m = min(area // n, next_power(M))
        config = {"BLOCK_M": m, "BLOCK_N": n, "num_warps": warps}
        if cdiv(M, m) * cdiv(N, n) >= _BLOCKS * processors:
            break
    return config


def _units(shape: Ints, strides: Ints, widest: int) -> Config:
    """By what lengths and strides are divided, so that the compiler knows how wide accesses may be: at most `widest`."""
    (M, N), (xm, xn) = shape, strides
    along_n, along_m = math.gcd(widest, N, xm) if xn == 1 else 1, math.gcd(widest, M, xn) if xm == 1 else 1
    return {"UNIT_M": math.gcd(widest, M), "UNIT_N": along_n, "UNIT_XM": along_n, "UNIT_XN": along_m}


VARIANTS = {
    "rows": Implementation(fn=transpose_rows, idea="contiguous loads, stores N apart"),
    "blocked": Implementation(fn=transpose_blocked, idea="a tile turned in shared memory: both sides contiguous"),
}
