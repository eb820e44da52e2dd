"""fp8_matmul: c = (scale_a * a) @ (scale_b * b) of 8-bit floats, with one scale, one per line, or one per block of 128.

blocked     a tile per program, over pointers: any strides
persistent  the copy engine (TMA) does the loads; an operand that it cannot read is copied first; many tiles are made by
            warpgroups of their own (_families/byte_specialised.py)
few_rows    up to 128 rows of a: the weights are the rows of the products, programs share K
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._families.byte_products import (
    BLOCKS,
    ON_HOPPER,
    SCALES,
    maps,
    of_lines,
    on_lines,
    repays,
    scaled,
)
from kernelmux.backends.triton._families.byte_specialised import SpecialisedLaunch, in_sectors, specialised, tile_for
from kernelmux.backends.triton._families.few_rows import FEW_ROWS, few_rows, pays
from kernelmux.backends.triton._launch.card import enough, narrow
from kernelmux.backends.triton._launch.launch import Config, Ints, Launch, cdiv, plan, processors
from kernelmux.backends.triton.matmul._blocked import tile_of
from kernelmux.registry import dtypes
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Capability

ELEMENTS = {torch.float8_e4m3fn: tl.float8e4nv, torch.float8_e5m2: tl.float8e5}
RESULTS = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}
LENGTH = tl.constexpr(128)  # of K (and of N) that share a scale, and after which sums are promoted


@triton.jit
def _promoted(
    acc, part, scale_a_ptr, scale_b_ptr, rows, n, group, M, N, K, SCALE_A: tl.constexpr, SCALE_B: tl.constexpr
):  # fmt: skip
    """acc + part, a sum over the 128 of K with this number: rows [BLOCK_M, 1], columns of one block of scales from n on."""
    if SCALE_A == BLOCKS or SCALE_B == BLOCKS:
        left = tl.full([], 1.0, tl.float32)
        right = tl.full([], 1.0, tl.float32)
        if SCALE_A == BLOCKS:
            left = tl.load(scale_a_ptr + rows.to(tl.int64) * tl.cdiv(K, LENGTH) + group, mask=rows < M, other=0.0)
        if SCALE_B == BLOCKS:
            right = tl.load(scale_b_ptr + tl.cast(group, tl.int64) * tl.cdiv(N, LENGTH) + n // LENGTH)
        part = scaled(part, left, right)
    return acc + part


@triton.jit
def _store(
    c_ptr, sums, scale_a_ptr, scale_b_ptr, rows, columns, M, N, SCALE_A: tl.constexpr, SCALE_B: tl.constexpr
):  # fmt: skip
    sums = scaled(sums, of_lines(scale_a_ptr, rows, M, SCALE_A), of_lines(scale_b_ptr, columns, N, SCALE_B))
    offs = rows.to(tl.int64) * N + columns
    tl.store(c_ptr + offs, sums.to(c_ptr.dtype.element_ty), mask=(rows < M) & (columns < N))


@triton.jit
def fp8_blocked_kernel(
    c_ptr, a_ptr, b_ptr, scale_a_ptr, scale_b_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    SCALE_A: tl.constexpr, SCALE_B: tl.constexpr, PROMOTES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    tile_m, tile_n = tile_of(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + (rows.to(tl.int64) * stride_am + offs_k[None, :].to(tl.int64) * stride_ak)
    b_ptrs = b_ptr + (offs_k[:, None].to(tl.int64) * stride_bk + columns.to(tl.int64) * stride_bn)
    step = tl.full([], BLOCK_K, tl.int64)
    # [BLOCK_M, BLOCK_N]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, K, LENGTH):
        part = tl.zeros([BLOCK_M, BLOCK_N], tl.float32) if PROMOTES else acc
        for k in range(first, first + LENGTH, BLOCK_K):
            a = tl.load(a_ptrs, mask=(rows < M) & (offs_k[None, :] < K - k), other=0.0)
            b = tl.load(b_ptrs, mask=(offs_k[:, None] < K - k) & (columns < N), other=0.0)
            part = tl.dot(a, b, part)
            a_ptrs += step * stride_ak
            b_ptrs += step * stride_bk
        if PROMOTES:
            group = first // LENGTH
            acc = _promoted(
                acc, part, scale_a_ptr, scale_b_ptr, rows, tile_n * BLOCK_N, group, M, N, K, SCALE_A, SCALE_B
            )
        else:
            acc = part
    _store(c_ptr, acc, scale_a_ptr, scale_b_ptr, rows, columns, M, N, SCALE_A, SCALE_B)


@triton.jit
def fp8_persistent_kernel(
    c_ptr, a_desc, b_desc, scale_a_ptr, scale_b_ptr, M, N, K,
    SCALE_A: tl.constexpr, SCALE_B: tl.constexpr, PROMOTES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    GROUP_M: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    # Flattened, the loop over tiles and the loop over K are one, whose pipeline does not drain between tiles.
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        tile_m, tile_n = tile_of(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
        columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        # [BLOCK_M, BLOCK_N]
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for k in range(0, K, LENGTH):
            a = a_desc.load([tile_m * BLOCK_M, k])
            b = b_desc.load([tile_n * BLOCK_N, k]).T
            if PROMOTES:
                # Where the sums may be imprecise is said, so that no pass adds acc within the product.
                part = tl.dot(a, b, max_num_imprecise_acc=LENGTH)
                group = k // LENGTH
                acc = _promoted(
                    acc, part, scale_a_ptr, scale_b_ptr, rows, tile_n * BLOCK_N, group, M, N, K, SCALE_A, SCALE_B
                )
            else:
                acc = tl.dot(a, b, acc)
        _store(c_ptr, acc, scale_a_ptr, scale_b_ptr, rows, columns, M, N, SCALE_A, SCALE_B)


class Fp8Problem(NamedTuple):
    """Device, sizes, strides of a [M, K] and b [K, N], kinds of their scales, whether sums are promoted, both types and
    that of the result."""

    device: int
    M: int
    N: int
    K: int
    a_strides: Ints
    b_strides: Ints
    scale_a: int
    scale_b: int
    promotes: bool
    formats: tuple[Any, Any]
    out: Any

    @property
    def meta(self) -> Config:
        return {"SCALE_A": self.scale_a, "SCALE_B": self.scale_b, "PROMOTES": self.promotes}


def fp8_blocked(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, out_dtype: str, accumulation: str
) -> torch.Tensor:
    return _run(_blocked, a, b, scale_a, scale_b, out_dtype, accumulation)


def fp8_persistent(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, out_dtype: str, accumulation: str
) -> torch.Tensor:
    if not repays(a, b):
        return fp8_blocked(a, b, scale_a, scale_b, out_dtype, accumulation)
    a, b = on_lines(a, b)
    if BLOCKS.value not in (_kind(scale_a, (a.shape[0], 1)), _kind(scale_b, (1, b.shape[1]))):
        a, b = in_sectors(a, b, promotes=accumulation == "full")
    return _run(_persistent, a, b, scale_a, scale_b, out_dtype, accumulation)


def fp8_few_rows(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, out_dtype: str, accumulation: str
) -> torch.Tensor:
    (M, K), N = a.shape, b.shape[1]
    if not (pays(M, N, a.get_device()) and repays(a, b)):
        return fp8_persistent(a, b, scale_a, scale_b, out_dtype, accumulation)
    a, b = on_lines(a, b)
    c = torch.empty((M, N), dtype=dtypes.parse(out_dtype), device=a.device)
    if c.numel() == 0 or K == 0:
        return c.zero_()
    return few_rows(c, a, b, scale_a, scale_b, (_kind(scale_a, (M, 1)), _kind(scale_b, (1, N))))


def _run(
    make: Callable[[Fp8Problem], Launch | SpecialisedLaunch], a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor,
    scale_b: torch.Tensor, out_dtype: str, accumulation: str,
) -> torch.Tensor:  # fmt: skip
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty((M, N), dtype=dtypes.parse(out_dtype), device=a.device)
    if K == 0:
        return c.zero_()
    if c.numel():
        kinds = _kind(scale_a, (M, 1)), _kind(scale_b, (1, N))
        promotes = accumulation == "full" or BLOCKS.value in kinds
        formats = ELEMENTS[a.dtype], ELEMENTS[b.dtype]
        launch = make(
            Fp8Problem(a.get_device(), M, N, K, a.stride(), b.stride(), *kinds, promotes, formats, RESULTS[c.dtype])
        )
        launch(c, a, b, scale_a, scale_b)
    return c


def _kind(scale: torch.Tensor, lines: Ints) -> int:
    return 1 if scale.dim() == 0 else 2 if scale.shape == lines else BLOCKS.value


@plan
def _blocked(p: Fp8Problem) -> Launch:
    config = blocked_rule(p)
    grid = cdiv(p.M, config["BLOCK_M"]) * cdiv(p.N, config["BLOCK_N"])
    return Launch(fp8_blocked_kernel, (grid,), p.M, p.N, p.K, *p.a_strides, *p.b_strides, **p.meta, **config)


def blocked_rule(p: Fp8Problem) -> Config:
    """Operands that are loaded byte by byte keep an address for each: longer tiles spill."""
    vectors = all(n % 16 == 0 or n == 1 for n in (*p.a_strides, *p.b_strides, p.K))
    if not vectors or cdiv(p.M, 128) * cdiv(p.N, 128) < enough(p.device):
        warps = 8 if narrow(p.device) else 4  # 4 of them spill on sm_89, where bytes of b are turned in registers
        tile = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64 if vectors else 32, "num_warps": warps}
    else:
        tile = {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 64, "num_warps": 8}
    return {**tile, "GROUP_M": 8, "num_stages": 3}


@plan
def _persistent(p: Fp8Problem) -> Launch | SpecialisedLaunch:
    # Tiles of 128 x 128 for a third of the multiprocessors.
    busy = 3 * cdiv(p.M, 128) * cdiv(p.N, 128) >= processors(p.device)
    if BLOCKS.value not in (p.scale_a, p.scale_b) and busy:
        shape = p.M, p.N, p.K
        tile = tile_for(shape, (p.a_strides[0], p.b_strides[1]), processors(p.device), promotes=p.promotes)
        strides, scales = (p.a_strides, p.b_strides), (p.scale_a, p.scale_b)
        return specialised(p.device, shape, strides, p.formats, p.out, scales, p.promotes, tile)
    config = persistent_rule(p)
    block = config["BLOCK_M"], config["BLOCK_N"], LENGTH.value
    programs = min(processors(p.device), cdiv(p.M, block[0]) * cdiv(p.N, block[1]))
    given = maps((p.M, p.N, p.K), p.a_strides, p.b_strides, block)
    return Launch(fp8_persistent_kernel, (programs,), p.M, p.N, p.K, maps=given, **p.meta, **config)


def persistent_rule(p: Fp8Problem) -> Config:
    """Where large tiles are many, scales are of blocks: their sums are promoted, which takes twice the registers."""
    if cdiv(p.M, 128) * cdiv(p.N, 128) < enough(p.device):
        return {"BLOCK_M": 64, "BLOCK_N": 64, "GROUP_M": 8, "num_warps": 4, "num_stages": 4}
    return {"BLOCK_M": 128, "BLOCK_N": 128, "GROUP_M": 8, "num_warps": 8, "num_stages": 4}


VARIANTS = {
    "blocked": Implementation(fp8_blocked, "a tile per program", (Capability((8, 9)),), SCALES, "mma"),
    "persistent": Implementation(
        fp8_persistent, "TMA loads, one program per SM; an operand that it cannot read is copied",
        (Capability((9, 0), below=(10, 0)), *ON_HOPPER[1:]), {**SCALES, "a": "matrix", "b": "matrix"}, "mma",
    ),
    "few_rows": Implementation(
        fp8_few_rows, "weights are the rows of the products, programs share K", FEW_ROWS,
        {**SCALES, "a": "matrix", "b": "matrix"}, "mma",
    ),
}  # fmt: skip
