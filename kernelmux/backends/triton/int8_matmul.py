"""int8_matmul: c = a @ b of 8-bit integers in int32, or scale_a * (a @ b) * scale_b in bf16.

blocked     a tile per program, over pointers: any strides
persistent  the copy engine (TMA) does the loads; an operand that it cannot read is copied first; on Hopper many tiles are
            made by warpgroups of their own (_families/byte_specialised.py)
few_rows    up to 128 rows of a: the weights are the rows of the products, programs share K
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._families.byte_products import (
    ABSENT,
    LINES,
    ON_HOPPER,
    ONE,
    SCALES,
    maps,
    on_lines,
    repays,
)
from kernelmux.backends.triton._families.byte_specialised import SpecialisedLaunch, in_sectors, specialised, tile_for
from kernelmux.backends.triton._families.few_rows import FEW_ROWS, few_rows, pays
from kernelmux.backends.triton._launch.card import enough, fitting, held
from kernelmux.backends.triton._launch.launch import Config, Ints, Launch, cdiv, plan, processors
from kernelmux.backends.triton.matmul._blocked import tile_of
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Capability
from kernelmux.registry.util import cards

Maybe = torch.Tensor | None


@triton.jit
def _times(sums, scale_ptr, lines, count, KIND: tl.constexpr):
    """fp32 sums times one scale, or that of each row or column: lines [BLOCK_M, 1] or [1, BLOCK_N]."""
    if KIND == ONE:
        sums *= tl.load(scale_ptr)
    elif KIND == LINES:
        sums *= tl.load(scale_ptr + lines, mask=lines < count, other=0.0)
    return sums


@triton.jit
def _store(
    c_ptr, sums, scale_a_ptr, scale_b_ptr, m, n, M, N, SCALE_A: tl.constexpr, SCALE_B: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """sums [BLOCK_M, BLOCK_N] to (m, n)."""
    rows = m + tl.arange(0, BLOCK_M)[:, None]
    columns = n + tl.arange(0, BLOCK_N)[None, :]
    if SCALE_A != ABSENT or SCALE_B != ABSENT:
        sums = _times(sums.to(tl.float32), scale_a_ptr, rows, M, SCALE_A)
        sums = _times(sums, scale_b_ptr, columns, N, SCALE_B)
    offs = rows.to(tl.int64) * N + columns
    tl.store(c_ptr + offs, sums.to(c_ptr.dtype.element_ty), mask=(rows < M) & (columns < N))


@triton.jit
def int8_blocked_kernel(
    c_ptr, a_ptr, b_ptr, scale_a_ptr, scale_b_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    SCALE_A: tl.constexpr, SCALE_B: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):  # fmt: skip
    tile_m, tile_n = tile_of(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + (rows.to(tl.int64) * stride_am + offs_k[None, :].to(tl.int64) * stride_ak)
    b_ptrs = b_ptr + (offs_k[:, None].to(tl.int64) * stride_bk + columns.to(tl.int64) * stride_bn)
    step = tl.full([], BLOCK_K, tl.int64)
    # [BLOCK_M, BLOCK_N]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.int32)
    for k in range(0, K, BLOCK_K):
        a = tl.load(a_ptrs, mask=(rows < M) & (offs_k[None, :] < K - k), other=0)
        b = tl.load(b_ptrs, mask=(offs_k[:, None] < K - k) & (columns < N), other=0)
        acc = tl.dot(a, b, acc, out_dtype=tl.int32)
        a_ptrs += step * stride_ak
        b_ptrs += step * stride_bk
    _store(c_ptr, acc, scale_a_ptr, scale_b_ptr, tile_m * BLOCK_M, tile_n * BLOCK_N, M, N, SCALE_A, SCALE_B,
           BLOCK_M, BLOCK_N)  # fmt: skip


@triton.jit
def int8_persistent_kernel(
    c_ptr, a_desc, b_desc, scale_a_ptr, scale_b_ptr, M, N, K,
    SCALE_A: tl.constexpr, SCALE_B: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, SUBTILES: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    # Flattened, the loop over tiles and the loop over K are one, whose pipeline does not drain between tiles.
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        tile_m, tile_n = tile_of(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m = tile_m * BLOCK_M
        n = tile_n * BLOCK_N
        # [BLOCK_M, BLOCK_N]
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.int32)
        for k in range(0, K, BLOCK_K):
            acc = tl.dot(a_desc.load([m, k]), b_desc.load([n, k]).T, acc, out_dtype=tl.int32)
        # Half a tile at a time needs half the shared memory, which the pipeline has better use for.
        if SUBTILES == 2:
            halves = tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
            left, right = tl.split(halves)
            _store(c_ptr, left, scale_a_ptr, scale_b_ptr, m, n, M, N, SCALE_A, SCALE_B, BLOCK_M, BLOCK_N // 2)
            middle = n + BLOCK_N // 2
            _store(c_ptr, right, scale_a_ptr, scale_b_ptr, m, middle, M, N, SCALE_A, SCALE_B, BLOCK_M, BLOCK_N // 2)
        else:
            _store(c_ptr, acc, scale_a_ptr, scale_b_ptr, m, n, M, N, SCALE_A, SCALE_B, BLOCK_M, BLOCK_N)


class Int8Problem(NamedTuple):
    """Device, sizes, strides of a [M, K] and b [K, N], and the kinds of their scales."""

    device: int
    M: int
    N: int
    K: int
    a_strides: Ints
    b_strides: Ints
    scale_a: int
    scale_b: int

    @property
    def meta(self) -> Config:
        return {"SCALE_A": self.scale_a, "SCALE_B": self.scale_b}


def int8_blocked(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    return _run(_blocked, a, b, scale_a, scale_b)


def int8_persistent(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    if not repays(a, b):
        return int8_blocked(a, b, scale_a, scale_b)
    return _run(_persistent, *in_sectors(*on_lines(a, b), promotes=False), scale_a, scale_b)


def int8_few_rows(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    if not (pays(a.shape[0], b.shape[1], a.get_device()) and repays(a, b)):
        return int8_persistent(a, b, scale_a, scale_b)
    a, b = on_lines(a, b)
    c = _result(a, b, scale_a, scale_b)
    if c.numel() == 0 or a.numel() == 0:
        return c.zero_()
    left, right = (c if scale is None else scale for scale in (scale_a, scale_b))
    return few_rows(c, a, b, left, right, (_kind(scale_a), _kind(scale_b)))


def _result(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    dtype = torch.int32 if scale_a is None and scale_b is None else torch.bfloat16
    return torch.empty((a.shape[0], b.shape[1]), dtype=dtype, device=a.device)


def _run(
    make: Callable[[Int8Problem], Launch | SpecialisedLaunch],
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: Maybe,
    scale_b: Maybe,
) -> torch.Tensor:
    (M, K), N = a.shape, b.shape[1]
    c = _result(a, b, scale_a, scale_b)
    if c.numel():
        kinds = [_kind(scale) for scale in (scale_a, scale_b)]
        launch = make(Int8Problem(a.get_device(), M, N, K, a.stride(), b.stride(), *kinds))
        launch(c, a, b, *[c if scale is None else scale for scale in (scale_a, scale_b)])
    return c


def _kind(scale: Maybe) -> int:
    return 0 if scale is None else 1 if scale.numel() == 1 else 2


@plan
def _blocked(p: Int8Problem) -> Launch:
    config = blocked_rule(p)
    grid = cdiv(p.M, config["BLOCK_M"]) * cdiv(p.N, config["BLOCK_N"])
    return Launch(int8_blocked_kernel, (grid,), p.M, p.N, p.K, *p.a_strides, *p.b_strides, **p.meta, **config)


def blocked_rule(p: Int8Problem) -> Config:
    """Operands that are loaded byte by byte keep an address for each: larger tiles spill, on sm_80 first."""
    vectors = all(n % 16 == 0 or n == 1 for n in (*p.a_strides, *p.b_strides, p.K))
    if not vectors or cdiv(p.M, 128) * cdiv(p.N, 128) < enough(p.device):
        tile = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64 if vectors else 32, "num_warps": 4}
    else:
        tile = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8}
    return {**tile, "GROUP_M": 8, "num_stages": 3}


def persistent_rule(p: Int8Problem) -> Config:
    """Sums of 32 bits leave through shared memory that is then not the pipeline's."""
    if cdiv(p.M, 128) * cdiv(p.N, 128) < enough(p.device):
        return _tile(64, 64, warps=4, stages=4, subtiles=1)
    exact = p.scale_a == p.scale_b == 0
    wide = _tile(128, 256, warps=8, stages=3 if exact else 4, subtiles=2 if exact else 1)
    return fitting([wide, _tile(128, 128, warps=8, stages=3, subtiles=1)], p.device, partial(_shared, p.device))


def _shared(device: int, c: Config) -> int:
    m, n = c["BLOCK_M"], c["BLOCK_N"]
    return int(held(c["num_stages"], device) * (m + n) * c["BLOCK_K"] + m * n)  # of the sums a quarter at a time


def _tile(m: int, n: int, warps: int, stages: int, subtiles: int) -> Config:
    tile = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": 128, "GROUP_M": 8, "SUBTILES": subtiles}
    return {**tile, "num_warps": warps, "num_stages": stages}


@plan
def _persistent(p: Int8Problem) -> Launch | SpecialisedLaunch:
    hopper = (9, 0) <= cards.of(p.device).capability < (10, 0)
    if hopper and 3 * cdiv(p.M, 128) * cdiv(p.N, 128) >= processors(p.device):
        shape, strides, scales = (p.M, p.N, p.K), (p.a_strides, p.b_strides), (p.scale_a, p.scale_b)
        out = tl.int32 if p.scale_a == p.scale_b == ABSENT.value else tl.bfloat16
        tile = tile_for(shape, (p.a_strides[0], p.b_strides[1]), processors(p.device), promotes=False)
        return specialised(p.device, shape, strides, (tl.int8, tl.int8), out, scales, False, tile)
    config = persistent_rule(p)
    block = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    programs = min(processors(p.device), cdiv(p.M, block[0]) * cdiv(p.N, block[1]))
    given = maps((p.M, p.N, p.K), p.a_strides, p.b_strides, block)
    return Launch(int8_persistent_kernel, (programs,), p.M, p.N, p.K, maps=given, **p.meta, **config)


VARIANTS = {
    "blocked": Implementation(int8_blocked, "a tile per program", (Capability((8, 0)),), SCALES, "int32"),
    "persistent": Implementation(
        int8_persistent, "TMA loads, one program per SM", ON_HOPPER, {**SCALES, "a": "matrix", "b": "matrix"}, "int32"
    ),
    "few_rows": Implementation(
        int8_few_rows, "weights are the rows of the products, programs share K", FEW_ROWS,
        {**SCALES, "a": "matrix", "b": "matrix"}, "int32",
    ),
}  # fmt: skip
