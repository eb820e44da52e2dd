"""Products of 8-bit operands with few rows of a: weights are the rows of the products, programs share K.

c [M, N] = a [M, K] @ b [K, N] with K contiguous in both. What takes time is reading b, so its columns are the rows of the
products and the rows of a, of which there are few, their columns. Where tiles are few, several programs share the K of
each and leave sums in fp32 or int32, which a second kernel adds in order and ends.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda

from kernelmux.backends.triton._families.byte_products import ABSENT, BLOCKS, WITH_MAPS, maps, of_lines, scaled
from kernelmux.backends.triton._launch.launch import Config, Ints, Launch, cdiv, plan, processors
from kernelmux.registry.conditions import AtMost, Capability

MOST_ROWS, COLUMNS = 128, 64  # of a, and of c in a tile
FEW_ROWS = (Capability((9, 0), below=(10, 0)), AtMost("M", MOST_ROWS), *WITH_MAPS)
LENGTH = tl.constexpr(128)  # of K, in a step


@triton.jit
def _ended(sums, left, right, c_ptr, SCALE_A: tl.constexpr, SCALE_B: tl.constexpr):
    if SCALE_A != ABSENT or SCALE_B != ABSENT:
        sums = scaled(sums.to(tl.float32), left, right)
    return sums.to(c_ptr.dtype.element_ty)


@triton.jit
def few_rows_kernel(
    c_ptr, a_desc, b_desc, scale_a_ptr, scale_b_ptr, M, N, K, share,
    SCALE_A: tl.constexpr, SCALE_B: tl.constexpr, INTEGERS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    if SPLIT > 1:
        cuda.gdc_launch_dependents()
    n = tl.program_id(0) * BLOCK_N
    first = tl.program_id(1) * share
    rows = tl.arange(0, BLOCK_M)[None, :]
    columns = n + tl.arange(0, BLOCK_N)[:, None]
    # [BLOCK_N, BLOCK_M]
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.int32 if INTEGERS else tl.float32)
    for k in range(first, tl.minimum(first + share, K), LENGTH):
        weights = b_desc.load([n, k])
        values = a_desc.load([0, k]).T
        if INTEGERS:
            acc = tl.dot(weights, values, acc, out_dtype=tl.int32)
        else:
            part = tl.dot(weights, values, max_num_imprecise_acc=LENGTH)
            if SCALE_A == BLOCKS or SCALE_B == BLOCKS:
                left = tl.full([], 1.0, tl.float32)
                right = tl.full([], 1.0, tl.float32)
                group = k // LENGTH
                if SCALE_A == BLOCKS:
                    left = tl.load(scale_a_ptr + rows * tl.cdiv(K, LENGTH) + group, mask=rows < M, other=0.0)
                if SCALE_B == BLOCKS:
                    right = tl.load(scale_b_ptr + tl.cast(group, tl.int64) * tl.cdiv(N, LENGTH) + n // LENGTH)
                part = scaled(part, left, right)
            acc += part
    mask = (rows < M) & (columns < N)
    offs = rows.to(tl.int64) * N + columns
    if SPLIT > 1:
        tl.store(c_ptr + tl.program_id(1).to(tl.int64) * M * N + offs, acc, mask=mask)
    else:
        left = of_lines(scale_a_ptr, rows, M, SCALE_A)
        right = of_lines(scale_b_ptr, columns, N, SCALE_B)
        tl.store(c_ptr + offs, _ended(acc, left, right, c_ptr, SCALE_A, SCALE_B), mask=mask)


@triton.jit
def end_shares_kernel(
    c_ptr, parts_ptr, scale_a_ptr, scale_b_ptr, M, N,
    SCALE_A: tl.constexpr, SCALE_B: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Adds parts [SPLIT, M, N] in order and ends the sums; a program has BLOCK columns of a row."""
    row = tl.program_id(1)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    left = of_lines(scale_a_ptr, row, M, SCALE_A)
    right = of_lines(scale_b_ptr, columns, N, SCALE_B)
    offs = tl.cast(row, tl.int64) * N + columns
    cuda.gdc_wait()
    sums = tl.load(parts_ptr + offs, mask=columns < N, other=0)
    for part in tl.static_range(1, SPLIT):
        sums += tl.load(parts_ptr + tl.cast(part, tl.int64) * M * N + offs, mask=columns < N, other=0)
    tl.store(c_ptr + offs, _ended(sums, left, right, c_ptr, SCALE_A, SCALE_B), mask=columns < N)


class FewRowsProblem(NamedTuple):
    """Device, sizes, strides of a [M, K] and b [K, N], kinds of their scales, whether sums are integers."""

    device: int
    M: int
    N: int
    K: int
    a_strides: Ints
    b_strides: Ints
    scale_a: int
    scale_b: int
    integers: bool


def pays(M: int, N: int, device: int) -> bool:
    """Every tile reads all rows of a: with more than 64 of them, not for more tiles than run at a time."""
    return M <= 64 or cdiv(N, COLUMNS) <= 2 * processors(device)


def few_rows(
    c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scale_a: Any, scale_b: Any, kinds: Ints
) -> torch.Tensor:
    """Fills c, of both operands with K contiguous; scales that there are none of are any tensor."""
    M, K = a.shape
    integers = not a.dtype.is_floating_point
    problem = FewRowsProblem(a.get_device(), M, K=K, N=b.shape[1], a_strides=a.stride(), b_strides=b.stride(),
                             scale_a=kinds[0], scale_b=kinds[1], integers=integers)  # fmt: skip
    launch, end, split = few_rows_plan(problem)
    if split == 1:
        launch(c, a, b, scale_a, scale_b)
        return c
    parts = c.new_empty((split, *c.shape), dtype=torch.int32 if integers else torch.float32)
    launch(parts, a, b, scale_a, scale_b)
    end(c, parts, scale_a, scale_b)
    return c


@plan
def few_rows_plan(p: FewRowsProblem) -> tuple[Launch, Launch, int]:
    return few_rows_launches(p, few_rows_rule(p))


def few_rows_launches(p: FewRowsProblem, config: Config) -> tuple[Launch, Launch, int]:
    """The launch, that of the end, and how many programs share K."""
    split = config["SPLIT"]
    share = cdiv(cdiv(p.K, split), LENGTH.value) * LENGTH.value
    scales: Config = {"SCALE_A": p.scale_a, "SCALE_B": p.scale_b}
    pitch = p.a_strides if p.M > 1 else (cdiv(p.K, 16) * 16, 1)
    given = maps((p.M, p.N, p.K), pitch, p.b_strides, (config["BLOCK_M"], config["BLOCK_N"], LENGTH.value))
    launch = Launch(
        few_rows_kernel, (cdiv(p.N, config["BLOCK_N"]), split), p.M, p.N, p.K, share, maps=given,
        INTEGERS=p.integers, **scales, **config,
    )  # fmt: skip
    end = Launch(
        end_shares_kernel, (cdiv(p.N, 512), p.M), p.M, p.N, SPLIT=split, BLOCK=512, num_warps=4, launch_pdl=True, **scales,
    )  # fmt: skip
    return launch, end, split


def few_rows_rule(p: FewRowsProblem) -> Config:
    """Two programs on each multiprocessor, with a pipeline that fills their half of its shared memory.

    H200, us where programs share K so and where none does: int8, 17 x 4096 by 4096 x 4096 11.7 and 12.5, fp8, 128 x 8192 by
    8192 x 8192 32.4 and 40.6.
    """
    block_m, tiles = next(n for n in (16, 32, 64, 128) if p.M <= n), cdiv(p.N, COLUMNS)
    slots = 2 * processors(p.device)
    split = max((n for n in range(1, 9) if n * tiles <= slots and n * 512 <= p.K), default=1)
    stages = min(8, 108 * 1024 // ((block_m + COLUMNS) * LENGTH.value))
    return {"BLOCK_M": block_m, "BLOCK_N": COLUMNS, "SPLIT": split, "num_warps": 4, "num_stages": stages}
