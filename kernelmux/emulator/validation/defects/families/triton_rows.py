"""Triton kernels over rows and elements: masks, strides, offsets, programs that share memory."""

from pathlib import Path

import torch
import triton
import triton.language as tl

from kernelmux.emulator.validation.defects.model import Defect, TritonLaunch

FAMILY = "Triton: rows and elements"
SOURCE = Path(__file__)


@triton.jit
def softmax_kernel(x_ptr, y_ptr, stride_m, N, BLOCK_N: tl.constexpr, DEFECT: tl.constexpr):
    """A row per program, scaled to sum 1."""
    row = tl.program_id(0)
    offs_n = tl.arange(0, BLOCK_N)
    mask_n = offs_n < N
    if DEFECT == "mask_one_column_too_far":
        mask_n = offs_n <= N
    if DEFECT == "mask_one_column_too_short":
        mask_n = offs_n < N - 1
    if DEFECT == "no_load_mask":
        x = tl.load(x_ptr + row * stride_m + offs_n)  # reported: no_load_mask
    elif DEFECT == "tail_filled_with_zero":
        x = tl.load(x_ptr + row * stride_m + offs_n, mask=mask_n, other=0.0)
    elif DEFECT == "row_stride_of_block":
        x = tl.load(x_ptr + row * BLOCK_N + offs_n, mask=mask_n, other=-float("inf"))  # reported: row_stride_of_block
    else:
        x_ptrs = x_ptr + row * stride_m + offs_n
        x = tl.load(x_ptrs, mask=mask_n, other=-float("inf"))  # reported: mask_one_column_too_far
    e = tl.exp(x - tl.max(x, 0))
    if DEFECT == "maximum_not_subtracted":
        e = tl.exp(x)
    y = e / tl.sum(e, 0)
    if DEFECT == "no_store_mask":
        tl.store(y_ptr + row * N + offs_n, y)  # reported: no_store_mask
    else:
        tl.store(y_ptr + row * N + offs_n, y, mask=mask_n)


@triton.jit
def scale_kernel(x_ptr, y_ptr, N, BLOCK: tl.constexpr, DEFECT: tl.constexpr):
    """y = x times the number of the program plus one."""
    program = tl.program_id(0)
    offs = program * BLOCK + tl.arange(0, BLOCK)
    if DEFECT == "program_id_forgotten":
        offs = tl.arange(0, BLOCK)
    if DEFECT == "step_of_half_a_block":
        offs = program * (BLOCK // 2) + tl.arange(0, BLOCK)
    mask = offs < N
    x = tl.load(x_ptr + offs, mask=mask)
    tl.store(y_ptr + offs, x * (program + 1), mask=mask)  # reported: program_id_forgotten, step_of_half_a_block


@triton.jit
def copy_kernel(x_ptr, y_ptr, N, BLOCK: tl.constexpr, DEFECT: tl.constexpr):
    """y = x in steps of the grid."""
    step = tl.num_programs(0) * BLOCK
    if DEFECT == "one_element_less":
        N -= 1
    last = N
    if DEFECT == "last_block_left_out":
        last = N // BLOCK * BLOCK
    for start in range(tl.program_id(0) * BLOCK, last, step):
        offs = start + tl.arange(0, BLOCK)
        tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < N), mask=offs < N)


@triton.jit
def shard_kernel(x_ptr, y_ptr, row, N, first, BLOCK_N: tl.constexpr, DEFECT: tl.constexpr):
    """Rows of one shard of a large array, which begins at element `first` of it."""
    program = tl.program_id(0)
    offs_n = tl.arange(0, BLOCK_N)
    if DEFECT == "offset_in_32_bits":
        at = (row + program) * N - first
    else:
        at = (row + program).to(tl.int64) * N - first
    x = tl.load(x_ptr + at + offs_n, mask=offs_n < N)  # reported: offset_in_32_bits
    tl.store(y_ptr + program * BLOCK_N + offs_n, x, mask=offs_n < N)


@triton.jit
def sum_kernel(x_ptr, y_ptr, N, BLOCK: tl.constexpr, DEFECT: tl.constexpr):
    """y[0] = sum of x, a part by each program."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.sum(tl.load(x_ptr + offs, mask=offs < N, other=0.0), 0)
    if DEFECT == "parts_added_without_atomics":
        tl.store(y_ptr, tl.load(y_ptr) + part)  # reported: parts_added_without_atomics
    else:
        tl.atomic_add(y_ptr, part)


@triton.jit
def shift_kernel(x_ptr, y_ptr, N, BLOCK: tl.constexpr, DEFECT: tl.constexpr):
    """y[i] = x[i + 1]; into another array, because programs read what their neighbours write."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < N - 1
    x = tl.load(x_ptr + offs + 1, mask=mask)
    if DEFECT == "shift_in_place":
        tl.store(x_ptr + offs, x, mask=mask)  # reported: shift_in_place
    tl.store(y_ptr + offs, x, mask=mask)


@triton.jit
def reverse_kernel(x_ptr, scratch_ptr, y_ptr, BLOCK: tl.constexpr, DEFECT: tl.constexpr):
    """y = x backwards, by way of scratch in global memory."""
    offs = tl.arange(0, BLOCK)
    tl.store(scratch_ptr + offs, tl.load(x_ptr + offs))
    if DEFECT != "no_debug_barrier":
        tl.debug_barrier()
    tl.store(y_ptr + offs, tl.load(scratch_ptr + BLOCK - 1 - offs))  # reported: no_debug_barrier


def softmax() -> TritonLaunch:
    x = torch.linspace(-190, -160, 3 * 100).reshape(3, 100)
    arguments = {"x_ptr": x, "y_ptr": torch.full_like(x, torch.nan), "stride_m": 100, "N": 100, "BLOCK_N": 128}
    expected = {"y_ptr": torch.softmax(x.double(), 1).float()}
    return TritonLaunch(SOURCE, softmax_kernel, (3,), arguments, expected, tolerance=1e-6)


def scale() -> TritonLaunch:
    x = torch.arange(300.0) + 1
    arguments = {"x_ptr": x, "y_ptr": torch.full_like(x, torch.nan), "N": 300, "BLOCK": 128}
    return TritonLaunch(SOURCE, scale_kernel, (3,), arguments, {"y_ptr": x * (torch.arange(300) // 128 + 1)})


def copy() -> TritonLaunch:
    x = torch.arange(700.0)
    arguments = {"x_ptr": x, "y_ptr": torch.full_like(x, torch.nan), "N": 700, "BLOCK": 128}
    return TritonLaunch(SOURCE, copy_kernel, (2,), arguments, {"y_ptr": x})


def shard() -> TritonLaunch:
    x, row, n = torch.arange(4 * 128.0).reshape(4, 128), 50_000_000, 128
    arguments = {"x_ptr": x, "y_ptr": torch.full_like(x, torch.nan), "row": row, "N": n, "first": row * n}
    return TritonLaunch(SOURCE, shard_kernel, (4,), arguments | {"BLOCK_N": 128}, {"y_ptr": x})


def total() -> TritonLaunch:
    x = torch.arange(300.0)
    arguments = {"x_ptr": x, "y_ptr": torch.zeros(1), "N": 300, "BLOCK": 128}
    return TritonLaunch(SOURCE, sum_kernel, (3,), arguments, {"y_ptr": x.sum()})


def shift() -> TritonLaunch:
    x, y = torch.arange(300.0), torch.zeros(300)
    expected = torch.cat([x[1:], torch.zeros(1)])
    arguments = {"x_ptr": x, "y_ptr": y, "N": 300, "BLOCK": 128}
    return TritonLaunch(SOURCE, shift_kernel, (3,), arguments, {"y_ptr": expected})


def reverse() -> TritonLaunch:
    x = torch.arange(256.0)
    arguments = {"x_ptr": x, "scratch_ptr": torch.zeros(256), "y_ptr": torch.zeros(256), "BLOCK": 256}
    return TritonLaunch(SOURCE, reverse_kernel, (1,), arguments, {"y_ptr": x.flip(0), "scratch_ptr": x})


OUT, RACE = ("out of bounds",), ("race",)
NEIGHBOUR = "Memory behind the array is read or overwritten without an error; rarely the address is illegal."
UNWRITTEN = "The output holds there what the allocation held before."
ORDER = "Right or wrong depending on which program comes first."

DEFECTS = (
    Defect("no_load_mask", "A row shorter than the block is loaded without a mask.", NEIGHBOUR, softmax, OUT),
    Defect("no_store_mask", "A row shorter than the block is stored without a mask.", NEIGHBOUR, softmax, OUT),
    Defect("mask_one_column_too_far", "The mask says offs_n <= N.", NEIGHBOUR, softmax, OUT),
    Defect("mask_one_column_too_short", "The mask says offs_n < N - 1.", UNWRITTEN, softmax),
    Defect(
        "tail_filled_with_zero",
        "The tail of a row is filled with 0 before a softmax, not with -inf.",
        "The maximum and the sum include zeros.",
        softmax,
    ),
    Defect(
        "maximum_not_subtracted", "A softmax does not subtract the maximum.", "0 / 0 on rows far below zero.", softmax
    ),
    Defect("row_stride_of_block", "Rows are taken to be as long as the block.", NEIGHBOUR, softmax, OUT),
    Defect("program_id_forgotten", "All programs write the first block.", ORDER, scale, RACE),
    Defect("step_of_half_a_block", "The blocks of neighbouring programs overlap.", ORDER, scale, RACE),
    Defect("one_element_less", "The number of elements is one too small.", UNWRITTEN, copy),
    Defect("last_block_left_out", "The number of blocks is rounded down.", UNWRITTEN, copy),
    Defect(
        "offset_in_32_bits",
        "Row times row length is computed in 32 bits and passes 2^31.",
        "An illegal address, or another part of a large array.",
        shard,
        ("out of bounds", "bad pointer"),
    ),
    Defect(
        "parts_added_without_atomics", "Programs add their parts with load and store.", "Parts are lost.", total, RACE
    ),
    Defect("shift_in_place", "Programs overwrite what their neighbours still read.", ORDER, shift, RACE),
    Defect(
        "no_debug_barrier",
        "A program reads its own scratch in global memory with no tl.debug_barrier after writing it.",
        "Some threads read what was there before.",
        reverse,
        RACE,
    ),
)
