"""Products of few rows: the columns of b are the rows of the products, and programs share K.

What takes time is reading b, so its columns are the rows of the products, and the rows of a, of which there are few, their
columns. Where tiles are few, several programs share the K of each and leave sums in fp32, which a second kernel adds in
order and ends.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda

from kernelmux.backends.triton._launch.dependent import follow_previous, following
from kernelmux.backends.triton._launch.launch import Config, Launch, Map, cdiv, plan, processors
from kernelmux.backends.triton.matmul._blocked import Rule
from kernelmux.backends.triton.matmul._epilogue import PLAIN, EpilogueTensors, WholeTensor, activated, end_parts
from kernelmux.backends.triton.matmul._problem import MatmulShapes, described, problem
from kernelmux.registry.util.batch_strides import result

MOST_ROWS = 64


@triton.jit
def matmul_few_rows_kernel(
    c_ptr, a_desc, b_desc, bias_ptr, z_ptr, M, N, K, share, BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
    A_ROWS: tl.constexpr, B_ROWS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr, FOLLOWS: tl.constexpr = False,
):  # fmt: skip
    if SPLIT > 1:
        cuda.gdc_launch_dependents()
    follow_previous(FOLLOWS)
    n = tl.program_id(0) * BLOCK_N
    first = tl.program_id(1) * share
    # [BLOCK_N, BLOCK_M]
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for k in range(first, tl.minimum(first + share, K), BLOCK_K):
        weights = b_desc.load([k, n]).T if B_ROWS else b_desc.load([n, k])
        values = a_desc.load([0, k]).T if A_ROWS else a_desc.load([k, 0])
        acc = tl.dot(weights, values, acc)
    rows = tl.arange(0, BLOCK_M)[None, :]
    columns = n + tl.arange(0, BLOCK_N)[:, None]
    mask = (rows < M) & (columns < N)
    offs = rows.to(tl.int64) * N + columns
    if SPLIT > 1:
        tl.store(c_ptr + tl.program_id(1).to(tl.int64) * M * N + offs, acc, mask=mask)
    else:
        if BIAS:
            acc += tl.load(bias_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)
        if ACTIVATION != "none":
            tl.store(z_ptr + offs, acc.to(z_ptr.dtype.element_ty), mask=mask)
        tl.store(c_ptr + offs, activated(acc, ACTIVATION).to(c_ptr.dtype.element_ty), mask=mask)


def few_rows(a: torch.Tensor, b: torch.Tensor, rule: Rule, epilogue: EpilogueTensors) -> torch.Tensor:
    """a @ b of one matrix b and at least one row."""
    c = result(a, b)
    launch, end, split = _plan(problem(a, b, "ieee", epilogue.ending), rule)
    if end is None:
        launch(c, a, b, *epilogue.arguments(c))
    else:
        parts = c.new_empty((split, *c.shape), dtype=torch.float32)
        launch(parts, a, b)
        end(parts, c, *(epilogue.arguments(c) or (c, c)))
    return c


@plan
def _plan(p: MatmulShapes, rule: Rule) -> tuple[Launch, Launch | None, int]:
    """The launch, that of the end of a product whose K is shared, and by how many programs it is."""
    return launches(p, rule(p))


def launches(p: MatmulShapes, config: Config) -> tuple[Launch, Launch | None, int]:
    """As `_plan`, of a given tile."""
    block_m, block_n, block_k = (config[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    share = cdiv(cdiv(p.K, config["SPLIT"]), block_k) * block_k
    split = cdiv(p.K, share)
    a_strides = p.a_strides if p.M > 1 else (cdiv(p.K, 16) * 16, 1)
    end = p.end if split == 1 else PLAIN.ending
    maps = (
        WholeTensor(),
        Map(*described((p.M, p.K), a_strides, (block_m, block_k), ())),
        Map(*described((p.K, p.N), p.b_strides, (block_k, block_n), ())),
        *(() if end.plain else (WholeTensor(), WholeTensor())),
    )
    launch = Launch(
        matmul_few_rows_kernel, (cdiv(p.N, block_n), split), *end.missing, p.M, p.N, p.K, share, maps=maps, **end.meta,
        A_ROWS=a_strides[1] == 1, B_ROWS=p.b_strides[1] == 1, **{**config, "SPLIT": split},
        **following(p.device),
    )  # fmt: skip
    return launch, None if split == 1 else end_parts(p.end, split, p.M, p.N, follows=True), split


def few_rows_rule(p: MatmulShapes) -> Config:
    """Two programs on each multiprocessor, with a pipeline that fills their half of its shared memory.

    H200, us with 128 of K in a step and with 64: 17 x 4096 by 4096 x 11008 33.9 and 35.6, 6 x 11296 by 11296 x 18304 125
    and 130; 62 x 4096 by 4096 x 2880, which programs share, 16.9 and 17.2.
    """
    block_m, block_n = next(n for n in (16, 32, 64) if p.M <= n), 64
    tiles, slots = cdiv(p.N, block_n), 2 * processors(p.device)
    split = max((n for n in range(1, 9) if n * tiles <= slots and n * 256 <= p.K), default=1)
    block_k = 128 if p.M <= 32 or split > 1 else 64
    stages = min(8, 108 * 1024 // ((block_m + block_n) * block_k * 2))
    tile = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "SPLIT": split}
    return {**tile, "num_warps": 4, "num_stages": stages}
