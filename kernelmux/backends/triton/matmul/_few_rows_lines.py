"""Products of few rows whose b has K contiguous in lines that begin anywhere, which the copy engine cannot read.

Lines n, n + 8, n + 16, ... begin at one distance from a multiple of 16 bytes, and lie a multiple of 16 bytes apart. So a
program has columns of c that are 8 apart (fewer where lines are less odd), and reads their lines in whole vectors from the
first such multiple on. Rows of a, of which there are few, are copied to lines that begin with the same element. What lies
in front of that and behind the last vector, 14 elements at most, is one more product.
"""

from __future__ import annotations

from math import gcd

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda

from kernelmux.backends.triton._launch.launch import Config, Launch, cdiv, plan, processors
from kernelmux.backends.triton.matmul._blocked import Rule
from kernelmux.backends.triton.matmul._epilogue import PLAIN, EpilogueTensors, activated, end_parts
from kernelmux.backends.triton.matmul._problem import MatmulShapes, problem
from kernelmux.registry.util.batch_strides import result

VECTOR = tl.constexpr(8)  # elements of 16 bytes
BLOCK = 1024  # elements that a program copies


@triton.jit
def _from_vector(turn, line):
    """The element, counted from the first line on, at which the vectors of the lines of a turn begin."""
    return (turn * line + VECTOR - 1) // VECTOR * VECTOR


@triton.jit
def copy_turns_kernel(x_ptr, a_ptr, K, stride_am, stride_ak, line, pitch, BLOCK: tl.constexpr):
    """x [turns, M, pitch]: the rows of a for the lines of each turn, zeros behind their last whole vector."""
    cuda.gdc_launch_dependents()
    row, turn = tl.program_id(1), tl.program_id(2)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first = (_from_vector(turn, line) - turn * line).to(tl.int32)
    length = (K - first) // VECTOR * VECTOR
    offs = row.to(tl.int64) * stride_am + (at + first).to(tl.int64) * stride_ak
    x = tl.load(a_ptr + offs, mask=at < length, other=0.0)
    tl.store(x_ptr + (turn * tl.num_programs(1) + row).to(tl.int64) * pitch + at, x, mask=at < pitch)


@triton.jit
def few_rows_lines_kernel(
    c_ptr, x_ptr, a_ptr, b_ptr, bias_ptr, z_ptr, M, N, K, stride_am, stride_ak, line, step, pitch, share,
    BIAS: tl.constexpr, ACTIVATION: tl.constexpr, TURNS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """line: elements from one line of b to the next; step: from one of a turn to the next, in vectors."""
    turn = tl.program_id(0) % TURNS
    places = tl.program_id(0) // TURNS * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
    last = (N - 1 - turn) // TURNS
    lines = tl.minimum(places, last).to(tl.int64)
    turn_at = turn.to(tl.int64) * line
    begin = _from_vector(turn.to(tl.int64), line)
    first = (begin - turn_at).to(tl.int32)
    length = (K - first) // VECTOR * VECTOR
    offs_k = tl.arange(0, BLOCK_K)
    rows = tl.arange(0, BLOCK_M)[None, :]
    weights = b_ptr + (begin + lines * (tl.cast(step, tl.int64) * VECTOR) + offs_k[None, :])
    values = x_ptr + ((turn * M + tl.minimum(rows, M - 1)).to(tl.int64) * pitch + offs_k[:, None])
    # [BLOCK_N, BLOCK_M]
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    if SPLIT > 1:
        cuda.gdc_launch_dependents()
    if tl.program_id(1) == 0:  # what is in front of the vectors and behind them
        some = tl.arange(0, 2 * VECTOR)
        k = tl.where(some < first, some, some + length)
        w = tl.load(b_ptr + (turn_at + lines * TURNS * line + k[None, :]), mask=k[None, :] < K, other=0.0)
        at = tl.minimum(rows, M - 1).to(tl.int64) * stride_am + k[:, None].to(tl.int64) * stride_ak
        acc = tl.dot(w, tl.load(a_ptr + at, mask=k[:, None] < K, other=0.0), acc)
    cuda.gdc_wait()
    from_k = tl.program_id(1) * share
    for k in range(from_k, tl.minimum(from_k + share, length), BLOCK_K):
        inside = tl.max_constancy(offs_k < length - k, [VECTOR])
        w = tl.load(weights + k, mask=inside[None, :], other=0.0, eviction_policy="evict_first")
        v = tl.load(values + k)
        acc = tl.dot(w, v, acc)
    columns = places * TURNS + turn
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


def few_rows_lines(a: torch.Tensor, b: torch.Tensor, rule: Rule, epilogue: EpilogueTensors) -> torch.Tensor:
    """a @ b, one matrix b with K contiguous, of which the first line begins at a multiple of 16 bytes; K is 16 or more."""
    c = result(a, b)
    p = problem(a, b, "ieee", epilogue.ending)
    copy, launch, end, shape, split = _plan(p, rule)
    x = a.new_empty(shape)
    copy(x, a)
    if end is None:
        launch(c, x, a, b, *(epilogue.arguments(c) or (c, c)))
    else:
        parts = c.new_empty((split, *c.shape), dtype=torch.float32)
        launch(parts, x, a, b, c, c)
        end(parts, c, *(epilogue.arguments(c) or (c, c)))
    return c


@plan
def _plan(p: MatmulShapes, rule: Rule) -> tuple[Launch, Launch, Launch | None, tuple[int, ...], int]:
    return launches(p, rule(p))


def launches(p: MatmulShapes, config: Config) -> tuple[Launch, Launch, Launch | None, tuple[int, ...], int]:
    """The copy of a, the product, its end if programs share K; the shape of the copy, and how many share."""
    line, turns = p.b_strides[1], config["TURNS"]
    pitch = cdiv(p.K, config["BLOCK_K"]) * config["BLOCK_K"]
    copy = Launch(
        copy_turns_kernel, (cdiv(pitch, BLOCK), p.M, turns), p.K, *p.a_strides, line, pitch, BLOCK=BLOCK, num_warps=4
    )
    share = cdiv(cdiv(p.K, config["SPLIT"]), config["BLOCK_K"]) * config["BLOCK_K"]
    split = cdiv(p.K, share)
    end = p.end if split == 1 else PLAIN.ending
    tiles = turns * cdiv(cdiv(p.N, turns), config["BLOCK_N"])
    launch = Launch(
        few_rows_lines_kernel, (tiles, split), p.M, p.N, p.K, *p.a_strides, line, turns * line // VECTOR.value, pitch,
        share, launch_pdl=True, **end.meta, **{**config, "SPLIT": split},
    )  # fmt: skip
    last = None if split == 1 else end_parts(p.end, split, p.M, p.N, follows=True)
    return copy, launch, last, (turns, p.M, pitch), split


def few_rows_lines_rule(p: MatmulShapes) -> Config:
    """Two programs on each multiprocessor, with a pipeline that fills their half of its shared memory.

    H200, us: 17 x 4097 by 4097 x 4097 25.3 where no programs share K, 26.6 in halves; 2 x 9405 by 9405 x 12096 80.7 with
    128 of K in a step, 84.5 with 64.
    """
    turns = VECTOR.value // gcd(VECTOR.value, p.b_strides[1])
    block_m, block_n, block_k = next(n for n in (16, 32, 64) if p.M <= n), 64, 128
    tiles = turns * cdiv(cdiv(p.N, turns), block_n)
    slots = 2 * processors(p.device) if tiles < 0.45 * processors(p.device) else tiles
    split = max((n for n in range(1, 9) if n * tiles <= slots and n * 256 <= p.K), default=1)
    stages = 4 if p.M <= 32 else 3
    tile = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "SPLIT": split, "TURNS": turns}
    return {**tile, "num_warps": 4, "num_stages": stages}
