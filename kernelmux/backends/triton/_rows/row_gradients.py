"""Gradients of row-wise operators that have vectors: of the rows, and sums over all rows for the vectors.

    shares(*saved, *values)   of an element: a tuple of what it adds to the gradient of each vector

fused  each program takes many rows and keeps its share of the vectors' gradients in registers: rows are read once
split  the row kernel for the gradient of the rows, which saves what it knows of each; another that walks the columns
Both write partial sums of the vectors' gradients and add them in a second step, in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda

from kernelmux.backends.triton._families.elementwise import ACCESS_BYTES
from kernelmux.backends.triton._families.sums import ReductionStep, run, sum_first
from kernelmux.backends.triton._launch.card import SPARE
from kernelmux.backends.triton._launch.launch import Config, cdiv, like, overlaps, plan, processors, shared_bytes
from kernelmux.backends.triton._launch.strides import Ints
from kernelmux.backends.triton._rows.row_op import RowLaunch, RowOp, Tensors, rows
from kernelmux.backends.triton._rows.row_tiles import chunk_columns, chunk_masks, in_fp32, load_chunks, store_chunk
from kernelmux.backends.triton._rows.rows import clamp, next_power
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost

# Two inputs of a row, weight and its gradient, 32 values each per thread, still fit the registers of 16 warps.
FUSED = 16384
SHORT = 2048  # columns up to which a thread has 8 of a row at most
# Longer rows have few warps, whose threads may have 255 registers: 4, and two programs per SM, up to so many columns, then
# 8. H200, layer_norm, bf16: 16384 x 4096 110 us (152 with 16 warps), 8192 x 6144 97 (103), 16384 x 8192 212 (217), 4096 x
# 9216 71 (175), 8192 x 11008 163 (568).
FOUR_WARPS = 4096
# Beyond so many columns vectors are read for each row. H200: rms_norm, 8192 x 11008 141 us (189), but 4096 x 9216 66 (64).
WEIGHTS_HELD = 10240


class GradientOp(NamedTuple):
    """op: what the gradient of the rows is; shares: as above; saved: how many numbers of a row that takes."""

    op: RowOp
    shares: Any
    saved: int


@triton.jit
def _weights(source, held, k: tl.constexpr, cols, masks, LATE: tl.constexpr):
    """The vectors' elements of chunk k, held or read once more: source as in load_chunks."""
    if LATE:
        return in_fp32(load_chunks(source, cols, masks, "evict_last"))
    else:
        return held[k]


@triton.jit
def _row(
    grad_x_ptr, sums, ins, source, weights, numbers, start, N,
    terms: tl.constexpr, lanes: tl.constexpr, total: tl.constexpr, finish: tl.constexpr, apply: tl.constexpr,
    shares: tl.constexpr, SAVED: tl.constexpr, BLOCK: tl.constexpr, CHUNKS: tl.constexpr, FULL: tl.constexpr,
    WIDTH: tl.constexpr, SPLIT: tl.constexpr, LATE: tl.constexpr,
):  # fmt: skip
    """One row; the sums with what it adds to them, per chunk a tuple with one for each vector."""
    starts = ()
    steps = ()
    for _ in tl.static_range(len(ins)):
        starts += (start,)  # type: ignore[assignment]
        steps += (1,)  # type: ignore[assignment]
    values = ()
    held = ()
    valid = ()
    for k in tl.static_range(CHUNKS):
        cols = chunk_columns(k * BLOCK, BLOCK, tl.int32)
        masks = chunk_masks(cols, 0, N, k < FULL, WIDTH, SPLIT)
        x = in_fp32(load_chunks((ins, starts, steps), cols, masks, ""))
        held += (x,)  # type: ignore[assignment]
        valid += (masks,)  # type: ignore[assignment]
        w = _weights(source, weights, k, cols, masks, LATE)
        values += (terms(*numbers, *x, *w),)  # type: ignore[assignment]
    known = finish(*numbers, *total(lanes(values, valid, N, True, WIDTH), N), N)
    added = ()
    for k in tl.static_range(CHUNKS):
        cols = chunk_columns(k * BLOCK, BLOCK, tl.int32)
        w = _weights(source, weights, k, cols, valid[k], LATE)
        grad_x = apply(*known, *numbers, *held[k], *w)
        store_chunk(grad_x_ptr + (start + cols), grad_x, valid[k])
        more = shares(*known[:SAVED], *held[k])
        both = ()
        for i in tl.static_range(len(more)):
            both += (sums[k][i] + more[i],)  # type: ignore[assignment]
        added += (both,)  # type: ignore[assignment]
    return added


@triton.jit
def gradients_fused_kernel(
    grads, sums, ins, vectors, numbers, M, N, units, vector_steps,
    terms: tl.constexpr, lanes: tl.constexpr, total: tl.constexpr, finish: tl.constexpr, apply: tl.constexpr,
    shares: tl.constexpr, SAVED: tl.constexpr, BLOCK: tl.constexpr, CHUNKS: tl.constexpr, FULL: tl.constexpr,
    WIDTH: tl.constexpr, SPLIT: tl.constexpr, STAGES: tl.constexpr, LEADS: tl.constexpr, LATE: tl.constexpr,
):  # fmt: skip
    """LATE: vectors are not held in registers but read again for each row, twice."""
    program = tl.program_id(0)
    starts = ()
    for _ in tl.static_range(len(vectors)):
        starts += (0,)  # type: ignore[assignment]
    weights = ()
    state = ()
    for k in tl.static_range(CHUNKS):
        cols = chunk_columns(k * BLOCK, BLOCK, tl.int32)
        nothing = ()
        for _ in tl.static_range(len(sums)):
            nothing += (tl.zeros([1, BLOCK], tl.float32),)  # type: ignore[assignment]
        masks = chunk_masks(cols, 0, N, k < FULL, WIDTH, SPLIT)
        wide = cols.to(tl.int64)
        if not LATE:
            weights += (in_fp32(load_chunks((vectors, starts, vector_steps), wide, masks, "evict_last")),)  # type: ignore[assignment]
        state += (nothing,)  # type: ignore[assignment]

    # The rows to come are on their way to shared memory while this one waits for its sums.
    for row in tl.range(program, M, tl.num_programs(0), num_stages=STAGES):
        start = row.to(tl.int64) * units * WIDTH
        state = _row(grads[0], state, ins, (vectors, starts, vector_steps), weights, numbers, start, N, terms, lanes, total,
                     finish, apply, shares, SAVED, BLOCK, CHUNKS, FULL, WIDTH, SPLIT, LATE)  # fmt: skip

    if LEADS:
        cuda.gdc_launch_dependents()
    for k in tl.static_range(CHUNKS):
        cols = chunk_columns(k * BLOCK, BLOCK, tl.int32)
        masks = chunk_masks(cols, 0, N, k < FULL, WIDTH, SPLIT)
        for i in tl.static_range(len(sums)):
            store_chunk(sums[i] + (program.to(tl.int64) * units * WIDTH + cols), state[k][i], masks)


@triton.jit
def gradients_columns_kernel(
    grads, sums, ins, saved, numbers, M, N,
    shares: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask_cols = cols < N

    # [BLOCK_M, BLOCK_N]
    state = ()
    for _ in tl.static_range(len(sums)):
        state += (tl.zeros([BLOCK_M, BLOCK_N], tl.float32),)  # type: ignore[assignment]
    for start in range(tl.program_id(0) * BLOCK_M, M, tl.num_programs(0) * BLOCK_M):
        state = _columns(state, ins, saved, start + tl.arange(0, BLOCK_M), cols, M, N, shares)
    for i in tl.static_range(len(sums)):
        out = sums[i] + tl.program_id(0).to(tl.int64) * N + cols
        tl.store(out, tl.sum(state[i], 0), mask=mask_cols)


@triton.jit
def _columns(state, ins, saved, row, cols, M, N, shares: tl.constexpr):
    """The sums with what some rows add to them."""
    mask = (row < M)[:, None] & (cols < N)[None, :]
    offs = row.to(tl.int64)[:, None] * N + cols[None, :]
    known = ()
    values = ()
    for i in tl.static_range(len(saved)):
        known += (tl.load(saved[i] + row, mask=row < M, other=0.0)[:, None],)  # type: ignore[assignment]
    for i in tl.static_range(len(ins)):
        values += (tl.load(ins[i] + offs, mask=mask, other=0.0).to(tl.float32),)  # type: ignore[assignment]
    more = shares(*known, *values)
    added = ()
    for i in tl.static_range(len(more)):
        added += (state[i] + more[i],)  # type: ignore[assignment]
    return added


class RowGradientsPlan(NamedTuple):
    """The launch that makes partial sums, their shape, and the steps that add them."""

    launch: RowLaunch
    sums: Ints
    last: tuple[ReductionStep, ...]


def rule(N: int, itemsize: int, inputs: int, room: int) -> Config:
    """Programs per SM, warps, columns of a chunk, stages of the rows to come; LATE: vectors are read for each row.

    room: bytes of shared memory that all programs of an SM share.
    """
    programs, late = 2 if N <= FOUR_WARPS else 1, N > WEIGHTS_HELD
    warps = 8 if N > FOUR_WARPS else 4 if N > SHORT else clamp(next_power(N) // 256, 1, 16)
    block = 256 * warps if N > SHORT else chunk(N)
    row = (
        (inputs + 2 * late) * cdiv(N, block) * block * itemsize
    )  # vectors that are read in the loop are on their way as well
    most = 2 if N > SHORT else clamp(131072 // row, 1, 3)
    ahead = clamp((room // programs - SPARE) // row, 0, most)
    return {"PER_SM": programs, "STAGES": 1 + ahead, "num_warps": warps, "BLOCK": block, "LATE": late}


def chunk(N: int) -> int:
    """Columns of a chunk: a power of two, of which so many as hold the row are at most a quarter too long."""
    block = next_power(N)
    while block > 512 and cdiv(N, block) * block - N > N // 4:
        block //= 2
    return block


@plan
def _fused(
    g: GradientOp, device: int, shape: Ints, itemsize: int, inputs: int, steps: Ints, count: int
) -> RowGradientsPlan:
    M, N = math.prod(shape[:-1]), shape[-1]
    config = rule(N, itemsize, inputs, shared_bytes(device))
    programs = min(M, config["PER_SM"] * processors(device))
    width = math.gcd(N, ACCESS_BYTES // itemsize)
    block = config["BLOCK"]
    launch = RowLaunch(
        gradients_fused_kernel, (programs,), M, N, N // width, steps, outputs=1, saved=count, inputs=inputs,
        terms=g.op.terms, lanes=g.op.statistic.lanes, total=g.op.statistic.total, finish=g.op.finish,
        apply=g.op.apply, shares=g.shares, SAVED=g.saved, BLOCK=block, CHUNKS=cdiv(N, block), FULL=N // block, WIDTH=width,
        SPLIT=False, STAGES=config["STAGES"], LEADS=overlaps(device), LATE=config["LATE"], num_warps=config["num_warps"],
    )  # fmt: skip
    return RowGradientsPlan(launch, (programs, N), sum_first(device, programs, N))


@plan
def _split(g: GradientOp, device: int, shape: Ints, inputs: int, count: int) -> RowGradientsPlan:
    M, N = math.prod(shape[:-1]), shape[-1]
    block_m, block_n = 16, 128
    blocks_n = cdiv(N, block_n)
    programs = clamp(cdiv(8 * processors(device), blocks_n), 1, cdiv(M, block_m))
    launch = RowLaunch(
        gradients_columns_kernel, (programs, blocks_n), M, N, outputs=0, saved=count, inputs=inputs,
        shares=g.shares, BLOCK_M=block_m, BLOCK_N=block_n, num_warps=4,
    )  # fmt: skip
    return RowGradientsPlan(launch, (programs, N), sum_first(device, programs, N))


def _last(p: RowGradientsPlan, sums: Tensors, like_vector: torch.Tensor) -> Tensors:
    grads = tuple([like(like_vector) for _ in sums])
    for part, grad in zip(sums, grads, strict=True):
        run(p.last, part, grad)
    return grads


def gradients_fused(
    g: GradientOp, ins: Tensors, vector: torch.Tensor, numbers: tuple[float, ...], count: int
) -> Tensors:
    """The gradient of the rows of contiguous inputs, and those of `count` vectors; the first of them is given."""
    x = ins[0]
    if x.numel() == 0:
        return like(x), *[torch.zeros_like(vector) for _ in range(count)]
    p = _fused(g, x.get_device(), x.shape, x.element_size(), len(ins), (vector.stride(0),), count)
    grad_x, sums = like(x), tuple([torch.empty(p.sums, dtype=torch.float32, device=x.device) for _ in range(count)])
    p.launch(grad_x, *sums, *ins, vector, numbers=numbers)
    return grad_x, *_last(p, sums, vector)


def gradients_split(
    g: GradientOp, ins: Tensors, vector: torch.Tensor, numbers: tuple[float, ...], count: int
) -> Tensors:
    """The same for rows of any length."""
    x = ins[0]
    if x.numel() == 0:
        return like(x), *[torch.zeros_like(vector) for _ in range(count)]
    p = _split(g, x.get_device(), x.shape, len(ins), count)
    saved = tuple([torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device) for _ in range(g.saved)])
    sums = tuple([torch.empty(p.sums, dtype=torch.float32, device=x.device) for _ in range(count)])
    (grad_x,) = rows(g.op, -1, ins, (vector,), numbers, saved=saved, resident=False)
    p.launch(*sums, *ins, *saved)
    return grad_x, *_last(p, sums, vector)


Way = Callable[[GradientOp, Tensors, torch.Tensor, tuple[float, ...], int], Tensors]


def gradient_variants(call: Callable[..., Tensors], *inputs: str) -> dict[str, Implementation]:
    """Both ways as variants; `call` takes one, then what the operator takes: contiguous inputs, weight, eps."""
    layout = dict.fromkeys(inputs, "contiguous")
    split, fused = partial(call, gradients_split), partial(call, gradients_fused)
    registers = "many rows per program, sums down the columns in registers"
    return {
        "split": Implementation(split, "rows for grad_x, then columns for the sums", layout=layout),
        "fused": Implementation(fused, registers, (AtMost("N", FUSED),), layout),
    }
