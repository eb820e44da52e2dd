"""The tiled product over pointers: any strides, any shape; order, tile and pipeline depth are compile-time values.

The products of a batch are one long row of tiles, one product after the other.

With SPLIT_K, each tile has several programs, which each take a share of K and leave fp32 sums to be added and ended.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._families.sums import run, sum_first
from kernelmux.backends.triton._launch.launch import Config, Launch, plan
from kernelmux.backends.triton.matmul._epilogue import PLAIN, EpilogueTensors, activated, biased, end_parts
from kernelmux.backends.triton.matmul._problem import MatmulShapes, problem
from kernelmux.registry.util.batch_strides import result

Rule = Callable[[MatmulShapes], Config]


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
def multiply_tile(
    tile, c_ptr, a_ptr, b_ptr, bias_ptr, z_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    stride_a_outer, stride_a_inner, stride_b_outer, stride_b_inner, inner,
    BIAS: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr, BATCHED: tl.constexpr,
    UNIT_M: tl.constexpr, UNIT_N: tl.constexpr, UNIT_K: tl.constexpr, UNIT_AM: tl.constexpr, UNIT_AK: tl.constexpr,
    UNIT_BK: tl.constexpr, UNIT_BN: tl.constexpr, UNIT_BATCH: tl.constexpr,
    EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr, B_POLICY: tl.constexpr,
):  # fmt: skip
    """Lengths and strides are in units of so many elements: Triton sees nothing of that kind but multiples of 16."""
    M *= UNIT_M
    N *= UNIT_N
    K *= UNIT_K
    stride_am *= UNIT_AM
    stride_ak *= UNIT_AK
    stride_bk *= UNIT_BK
    stride_bn *= UNIT_BN
    first = 0  # element of c
    if BATCHED:
        tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
        batch = (tile // tiles).to(tl.int64)
        tile = tile % tiles
        a_ptr += ((batch // inner) * stride_a_outer + (batch % inner) * stride_a_inner) * UNIT_BATCH
        b_ptr += ((batch // inner) * stride_b_outer + (batch % inner) * stride_b_inner) * UNIT_BATCH
        first = batch * M * N
    tile_m, tile_n = tile_of(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
    offs_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    mask_m = (offs_m < M) | EVEN_M
    mask_n = (offs_n < N) | EVEN_N

    begin = 0
    end = K
    if SPLIT_K > 1:
        share = tl.cdiv(tl.cdiv(K, BLOCK_K), SPLIT_K) * BLOCK_K
        begin = tl.program_id(1) * share
        end = tl.minimum(begin + share, K)
        products = tl.num_programs(0) // (tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N))
        c_ptr += tl.program_id(1).to(tl.int64) * products * M * N

    # [BLOCK_M, BLOCK_K], [BLOCK_K, BLOCK_N]
    offs_k = tl.arange(0, BLOCK_K)
    rows_k = (begin + offs_k).to(tl.int64)
    a_ptrs = a_ptr + (offs_m.to(tl.int64)[:, None] * stride_am + rows_k[None, :] * stride_ak)
    b_ptrs = b_ptr + (rows_k[:, None] * stride_bk + offs_n.to(tl.int64)[None, :] * stride_bn)

    step = tl.full([], BLOCK_K, tl.int64)  # BLOCK_K rows of b may be more than 2^31 elements
    # [BLOCK_M, BLOCK_N]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for k in range(begin, end, BLOCK_K):
        mask_k = (offs_k < end - k) | EVEN_K
        a = tl.load(a_ptrs, mask=mask_m[:, None] & mask_k[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=mask_k[:, None] & mask_n[None, :], other=0.0, eviction_policy=B_POLICY)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
        a_ptrs += step * stride_ak
        b_ptrs += step * stride_bk

    offs_c = first + offs_m.to(tl.int64)[:, None] * N + offs_n[None, :]
    mask = mask_m[:, None] & mask_n[None, :]
    acc = biased(acc, bias_ptr, offs_n, N, BIAS)
    if ACTIVATION != "none":
        tl.store(z_ptr + offs_c, acc.to(z_ptr.dtype.element_ty), mask=mask)
    tl.store(c_ptr + offs_c, activated(acc, ACTIVATION).to(c_ptr.dtype.element_ty), mask=mask)


@triton.jit
def matmul_blocked_kernel(
    c_ptr, a_ptr, b_ptr, bias_ptr, z_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    stride_a_outer, stride_a_inner, stride_b_outer, stride_b_inner, inner,
    BIAS: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr, BATCHED: tl.constexpr,
    UNIT_M: tl.constexpr, UNIT_N: tl.constexpr, UNIT_K: tl.constexpr, UNIT_AM: tl.constexpr, UNIT_AK: tl.constexpr,
    UNIT_BK: tl.constexpr, UNIT_BN: tl.constexpr, UNIT_BATCH: tl.constexpr,
    EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr, B_POLICY: tl.constexpr,
):  # fmt: skip
    multiply_tile(
        tl.program_id(0), c_ptr, a_ptr, b_ptr, bias_ptr, z_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
        stride_a_outer, stride_a_inner, stride_b_outer, stride_b_inner, inner, BIAS, ACTIVATION, PRECISION, BATCHED,
        UNIT_M, UNIT_N, UNIT_K, UNIT_AM, UNIT_AK, UNIT_BK, UNIT_BN, UNIT_BATCH, EVEN_M, EVEN_N, EVEN_K, BLOCK_M, BLOCK_N,
        BLOCK_K, GROUP_M, SPLIT_K, B_POLICY,
    )  # fmt: skip


def blocked(a: torch.Tensor, b: torch.Tensor, precision: str, rule: Rule, epilogue: EpilogueTensors) -> torch.Tensor:
    """a @ b with one tile per program."""
    c = result(a, b)
    if c.numel() == 0:
        return c
    launch, split, finish = _plan(problem(a, b, precision, epilogue.ending), rule)
    if split == 1:
        launch(c, a, b, *epilogue.arguments(c))
        return c
    sums = a.new_empty((split, *c.shape), dtype=torch.float32)
    launch(sums, a, b)
    finish(sums, c, *epilogue.arguments(c))
    return c


@plan
def _plan(p: MatmulShapes, rule: Rule) -> tuple[Launch, int, Callable[..., None]]:
    """The launch, into how many parts it cuts K, and what makes c of several."""
    config = {"SPLIT_K": 1, **rule(p)}
    block_m, block_n, block_k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    split = config["SPLIT_K"]
    numbers, units = p.in_units
    end = p.end if split == 1 else PLAIN.ending
    # With one row of tiles b is read once: it leaves L2 first, and displaces nothing that has to be written back before.
    policy = "evict_first" if p.M <= block_m and p.batch is None else ""
    launch = Launch(
        matmul_blocked_kernel, (p.tiles(block_m, block_n), split),
        *end.missing, *numbers, **end.meta, **units, PRECISION=p.precision, BATCHED=p.batch is not None,
        EVEN_M=p.M % block_m == 0, EVEN_N=p.N % block_n == 0, EVEN_K=p.K % block_k == 0, B_POLICY=policy, **config,
    )  # fmt: skip
    rows = p.products * p.M
    plain = partial(run, sum_first(p.device, split, rows * p.N))
    return launch, split, plain if p.end.plain else end_parts(p.end, split, rows, p.N)
