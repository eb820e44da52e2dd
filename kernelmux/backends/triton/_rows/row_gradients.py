"""Gradients of row-wise operators that have vectors: of the rows, and sums over all rows for the vectors.

    shares(*saved, *values)   of an element: a tuple of what it adds to the gradient of each vector

fused  each program takes many rows and keeps its share of the vectors' gradients in registers: rows are read once
split  pieces of rows, of which a kernel leaves what it knows; another walks down columns for both kinds of gradients
Both write partial sums of the vectors' gradients and add them in another step, in a fixed order, if there are several.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from kernelmux.backends.triton._families.elementwise import ACCESS_BYTES
from kernelmux.backends.triton._families.sums import ReductionStep, run, sum_first
from kernelmux.backends.triton._launch.card import SPARE
from kernelmux.backends.triton._launch.launch import Config, cdiv, like, overlaps, plan, processors, shared_bytes
from kernelmux.backends.triton._launch.strides import Ints
from kernelmux.backends.triton._rows.row_gradient_kernel import gradients_fused_kernel
from kernelmux.backends.triton._rows.row_op import PiecesPlan, RowLaunch, RowOp, Tensors, launches_of_pieces
from kernelmux.backends.triton._rows.row_pieces_plan import pieces_rule
from kernelmux.backends.triton._rows.rows import clamp, next_power
from kernelmux.backends.triton._rows.short_gradient_kernel import short_gradients_kernel
from kernelmux.backends.triton._rows.short_gradients import many_short, short_rule
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtLeast, AtMost, MostRows, UnevenRows

# Two inputs of a row, weight and its gradient, 32 values each per thread, still fit the registers of 16 warps.
FUSED = 16384
# Up to so many rows, of so many columns at least, are split where fused could take them. H200, bf16, us, and fused:
# rms_norm 17 x 9040 8.5 (9.5), 32 x 4096 8.5 (8.1), 128 x 8192 17.7 (11.1); add_rms_norm 5 x 15576 8.2 (12.0),
# 34 x 11205 11.3 (12.8); layer_norm 8 x 8192 8.9 (10.8).
FEW_ROWS, LONG_ROWS = 64, 8192
# Columns of rows of which a program takes several at a time, where they are not for short_gradients.py. H200, bf16,
# rms_norm: 8192 x 768 20 us (one row at a time 25), 2000 x 511 11 (15); add_rms_norm, 4029 x 359 14.4 us by three programs,
# 16.3 by four.
NARROW = 1024
# Up to so many columns two programs of 8 warps, if copies of 4 bytes can bring them: 178593 x 80 37 us, 72 by four of 4;
# 65536 x 128 25 (33).
SIDE = 128
SHORT = 2048  # columns up to which a thread has 8 of a row at most
# Longer rows have few warps, whose threads may have 255 registers: 4, and two programs per SM, up to so many columns, then
# 8. H200, layer_norm, bf16: 16384 x 4096 110 us (152 with 16 warps), 8192 x 6144 97 (103), 16384 x 8192 212 (217), 4096 x
# 9216 71 (175), 8192 x 11008 163 (568).
FOUR_WARPS = 4096
# Beyond so many columns vectors are read for each row. H200: rms_norm, 8192 x 11008 141 us (189), but 4096 x 9216 66 (64).
WEIGHTS_HELD = 10240
PEELED = 8  # bytes of an access below which rows are peeled
# Vectors of peeled rows would be read 2 bytes at a time, so they are held, by 8 warps up to so many columns, then by 16.
# H200, bf16, rms_norm: 4096 x 11007 102 us (vectors read for each row 153, rows not peeled 148), 4096 x 16001 213 (230 by
# 8 warps, not peeled 245), 8192 x 4097 64 (not peeled 139).
PEELED_BY_8 = 14336


class GradientOp(NamedTuple):
    """op: what the gradient of the rows is; shares: as above; saved: how many numbers of a row that takes.

    held: what `total` finds of many short rows, as in row_beside.
    """

    op: RowOp
    shares: Any
    saved: int
    held: Any


class RowGradientsPlan(NamedTuple):
    """The launch that makes partial sums, their shape, and the steps that add them."""

    launch: RowLaunch
    sums: Ints
    last: tuple[ReductionStep, ...]


def rule(N: int, itemsize: int, inputs: int, room: int, count: int = 1) -> Config:
    """Programs per SM, warps, columns of a chunk, stages of the rows to come; LATE: vectors are read for each row.

    room: bytes of shared memory that all programs of an SM share; count: vectors whose gradients are summed.
    """
    if N <= NARROW:
        return _narrow(N, itemsize, inputs, room, count)
    peeled = peel(N, itemsize)
    N = N // peeled * peeled if peeled else N
    programs, late = 2 if N <= FOUR_WARPS else 1, N > WEIGHTS_HELD and not peeled
    warps = 8 if N > FOUR_WARPS else 4 if N > SHORT else clamp(next_power(N) // 256, 1, 16)
    warps = 16 if peeled and N > PEELED_BY_8 else warps
    block = 256 * warps if N > SHORT else chunk(N)
    # Vectors that are read in the loop are on their way as well.
    row = (inputs + 2 * late) * cdiv(N, block) * block * itemsize
    most = 2 if N > SHORT else clamp(131072 // row, 1, 3)
    # What is read in less than 16 bytes changes places between threads: a chunk in fp32. Late vectors leave room for it.
    exchanged = 4 * block if N * itemsize % ACCESS_BYTES and not late else 0
    ahead = clamp((room // programs - max(SPARE, exchanged)) // row, 0, most)
    return {"ROWS": 1, "PER_SM": programs, "STAGES": 1 + ahead, "num_warps": warps, "BLOCK": block, "LATE": late}


def _narrow(N: int, itemsize: int, inputs: int, room: int, count: int) -> Config:
    """Several rows at a time: 16 elements of an input to a thread, as many programs as its registers leave room for."""
    block = max(16, next_power(N))
    warps, programs = (8, 2) if N <= SIDE and N * itemsize % 4 == 0 else (4, 4 if inputs + count == 3 else 3)
    rows = max(1, 512 * warps // block)
    ahead = clamp((room // programs - SPARE) // (inputs * rows * block * itemsize), 0, 2)
    return {"ROWS": rows, "PER_SM": programs, "STAGES": 1 + ahead, "num_warps": warps, "BLOCK": block, "LATE": False}


def peel(N: int, itemsize: int) -> int:
    """Elements of an access if rows are peeled: those that would be read a few bytes at a time; else 0."""
    width = ACCESS_BYTES // itemsize
    return width if N > NARROW and math.gcd(N, width) * itemsize < PEELED else 0


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
    launch, parts = (_short if many_short(M, N, itemsize) else _rows)(g, device, M, N, itemsize, inputs, steps, count)
    return RowGradientsPlan(launch, (parts, N), sum_first(device, parts, N))


def _short(
    g: GradientOp, device: int, M: int, N: int, itemsize: int, inputs: int, steps: Ints, count: int
) -> tuple[RowLaunch, int]:
    """The launch, and the partial sums that it leaves."""
    config = short_rule(N, itemsize, inputs, shared_bytes(device), count)
    programs = min(cdiv(M, config["ROWS"]), config.pop("PER_SM") * processors(device))
    launch = RowLaunch(
        short_gradients_kernel, (programs,), M, N, N // config["UNIT"], steps, outputs=1, saved=count, inputs=inputs,
        terms=g.op.terms, held=g.held, finish=g.op.finish, apply=g.op.apply, shares=g.shares, SAVED=g.saved,
        LEADS=overlaps(device), **config,
    )  # fmt: skip
    return launch, programs * config["PERIOD"]


def _rows(
    g: GradientOp, device: int, M: int, N: int, itemsize: int, inputs: int, steps: Ints, count: int
) -> tuple[RowLaunch, int]:
    """The same of all other rows."""
    config = rule(N, itemsize, inputs, shared_bytes(device), count)
    rows, block = config["ROWS"], config["BLOCK"]
    unit = math.gcd(N, ACCESS_BYTES // itemsize)
    peeled = peel(N, itemsize)
    programs = min(cdiv(M, rows), config["PER_SM"] * processors(device))
    if peeled and M > programs:
        programs = min(M, max(peeled, programs // peeled * peeled))
    least, unit, width = (N - peeled + 1, 1, peeled) if peeled else (N, unit, unit)
    launch = RowLaunch(
        gradients_fused_kernel, (programs,), M, N, N // unit, steps, outputs=1, saved=count, inputs=inputs,
        terms=g.op.terms, lanes=g.op.statistic.lanes, total=g.op.statistic.total, finish=g.op.finish,
        apply=g.op.apply, shares=g.shares, SAVED=g.saved, ROWS=rows, BLOCK=block, CHUNKS=cdiv(N // width, block // width),
        FULL=least // block, UNIT=unit, WIDTH=width, PEELED=peeled, STAGES=config["STAGES"], LEADS=overlaps(device),
        LATE=config["LATE"], num_warps=config["num_warps"],
    )  # fmt: skip
    return launch, programs


class SplitRowsPlan(NamedTuple):
    """Both launches; the shape of the partial sums, and the steps that add them."""

    launches: PiecesPlan
    sums: Ints
    last: tuple[ReductionStep, ...]


def split_rule(M: int, N: int, itemsize: int, inputs: int, on: int) -> Config:
    """As `pieces_rule`, with tiles of several rows, and programs that walk down so many columns.

    H200: layer_norm of 512 x 156160 in fp16 289 us by four programs, 320 by one; add_rms_norm of 34 x 11205 in bf16 11.3 us
    with tiles of 32 rows, 12.2 with 16.
    """
    rows = clamp(next_power(M), 1, 32 if M <= FEW_ROWS else 16)
    columns = max(128, 4096 // (rows * next_power(inputs)))
    while columns > 128 and cdiv(N, columns) < on:
        columns //= 2
    blocks = cdiv(N, columns)
    programs = clamp(cdiv((32 if blocks > 4 * on else 4) * on, blocks), 1, cdiv(M, 4 * rows))
    return {**pieces_rule(N, itemsize, inputs), "BLOCK_M": rows, "BLOCK_N": columns, "PROGRAMS": programs}


@plan
def _split(
    g: GradientOp, device: int, shape: Ints, itemsize: int, inputs: int, steps: Ints, count: int
) -> SplitRowsPlan:
    config = split_rule(math.prod(shape[:-1]), shape[-1], itemsize, inputs, processors(device))
    return launches_of_split(g, device, shape, itemsize, inputs, steps, count, config)


def launches_of_split(
    g: GradientOp, device: int, shape: Ints, itemsize: int, inputs: int, steps: Ints, count: int, config: Config
) -> SplitRowsPlan:
    """config: as `split_rule` gives it."""
    M, N, programs = math.prod(shape[:-1]), shape[-1], config["PROGRAMS"]
    sizes = (device, M, N, itemsize, inputs)
    launches = launches_of_pieces(g.op, *sizes, steps, 1, config, shares=g.shares, saved=g.saved, sums=count)
    return SplitRowsPlan(launches, (programs, N), sum_first(device, programs, N) if programs > 1 else ())


def _last(last: tuple[ReductionStep, ...], sums: Tensors, like_vector: torch.Tensor) -> Tensors:
    grads = tuple([like(like_vector) for _ in sums])
    for part, grad in zip(sums, grads, strict=True):
        run(last, part, grad)
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
    return grad_x, *_last(p.last, sums, vector)


def gradients_split(
    g: GradientOp, ins: Tensors, vector: torch.Tensor, numbers: tuple[float, ...], count: int
) -> Tensors:
    """The same for rows of any length."""
    x = ins[0]
    if x.numel() == 0:
        return like(x), *[torch.zeros_like(vector) for _ in range(count)]
    p = _split(g, x.get_device(), x.shape, x.element_size(), len(ins), (vector.stride(0),), count)
    return run_split(p, ins, vector, numbers, count)


def run_split(p: SplitRowsPlan, ins: Tensors, vector: torch.Tensor, numbers: tuple[float, ...], count: int) -> Tensors:
    grad_x = like(ins[0])
    if not p.last:  # the sums of one program are those of all rows
        grads = tuple([like(vector) for _ in range(count)])
        p.launches((grad_x,), grads, ins, (vector,), numbers)
        return grad_x, *grads
    sums = tuple([torch.empty(p.sums, dtype=torch.float32, device=vector.device) for _ in range(count)])
    p.launches((grad_x,), sums, ins, (vector,), numbers)
    return grad_x, *_last(p.last, sums, vector)


Way = Callable[[GradientOp, Tensors, torch.Tensor, tuple[float, ...], int], Tensors]


def gradient_variants(call: Callable[..., Tensors], *inputs: str) -> dict[str, Implementation]:
    """Both ways as variants; `call` takes one, then what the operator takes: contiguous inputs, weight, eps."""
    layout = dict.fromkeys(inputs, "contiguous")
    split, fused = partial(call, gradients_split), partial(call, gradients_fused)
    registers = "many rows per program, sums down the columns in registers"
    uneven = {"BatchInvariant": UnevenRows(inputs[0])}  # where whole accesses begin follows the place of the row
    few = (MostRows(inputs[0], FEW_ROWS), AtLeast("N", LONG_ROWS))
    return {
        "split": Implementation(
            split, "pieces of rows, then columns that know all of a row: any length", layout=layout
        ),
        "fused": Implementation(fused, registers, (AtMost("N", FUSED),), layout, exempt=uneven),
        "few_rows": Implementation(split, "as split, for few long rows: more programs than rows", few, layout),
    }
