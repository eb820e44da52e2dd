"""Images and kernels in the other order of memory, or with more channels, where the copy engine or the caller wants it."""

from __future__ import annotations

from math import gcd

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch.launch import Config, Launch, cdiv, plan, processors
from kernelmux.backends.triton._rows.rows import next_power
from kernelmux.backends.triton.conv2d._problem import VECTOR, Images, images
from kernelmux.registry.util.memory_format import fresh

BLOCK = 128  # channels and places of a tile, which is turned in shared memory
NUMBERS = 1024  # of a program that copies line by line
PROGRAMS = 6  # that an SM has shared memory for


@triton.jit
def conv2d_order_kernel(
    y_ptr, x_ptr, images, C, P, x_n, x_c, x_p, y_n, y_c, y_p, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr
):  # fmt: skip
    """x to y, both [N C P] of strides n, c and p, of which one is 1."""
    tiles_p = tl.cdiv(P, BLOCK_P)
    tiles = tl.cdiv(C, BLOCK_C) * tiles_p
    for index in range(tl.program_id(0), images * tiles, tl.num_programs(0)):
        n = (index // tiles).to(tl.int64)
        tile = index % tiles
        c = (tile // tiles_p * BLOCK_C + tl.arange(0, BLOCK_C)).to(tl.int64)[:, None]
        p = (tile % tiles_p * BLOCK_P + tl.arange(0, BLOCK_P)).to(tl.int64)[None, :]
        inside = (c < C) & (p < P)
        x = tl.load(x_ptr + n * x_n + (c * x_c + p * x_p), mask=inside)
        tl.store(y_ptr + n * y_n + (c * y_c + p * y_p), x, mask=inside)


@plan
def _plan(device: int, images: int, channels: int, places: int, last: bool) -> Launch:
    """The launch, of y and x. last: of channels-last images y from contiguous ones x, otherwise the reverse."""
    wide = BLOCK if channels % VECTOR == 0 else BLOCK // 2  # registers hold an address for each element there
    block: Config = {"BLOCK_C": min(BLOCK, next_power(channels)), "BLOCK_P": min(wide, next_power(places))}
    tiles = images * cdiv(channels, block["BLOCK_C"]) * cdiv(places, block["BLOCK_P"])
    size, first, second = channels * places, (places, 1), (1, channels)
    strides = (size, *first, size, *second) if last else (size, *second, size, *first)
    programs = min(PROGRAMS * processors(device), tiles)
    return Launch(conv2d_order_kernel, (programs,), images, channels, places, *strides, **block, num_warps=8)


def channels_last(x: torch.Tensor) -> torch.Tensor:
    """A channels-last copy."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    if x.is_contiguous():
        _plan(x.get_device(), len(x), x.shape[1], x.shape[2] * x.shape[3], True)(y, x)
    else:
        y.copy_(x)
    return y


def channels_first(x: torch.Tensor) -> torch.Tensor:
    """Channels-last images without gaps as contiguous ones: themselves where they are both."""
    if x.is_contiguous() or not x.numel():
        return fresh(x, torch.contiguous_format)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _plan(x.get_device(), len(x), x.shape[1], x.shape[2] * x.shape[3], False)(y, x)
    return y


@triton.jit(do_not_specialize=range(2, 9))
def conv2d_fold_kernel(
    y_ptr, x_ptr, channels, rows, height, width, left, columns, blocks, x_n, x_c, x_h, x_w,
    CHANNELS: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y [N, rows, columns, CHANNELS], dense, from x [N, channels, height, width]; zero where x has nothing.

    blocks: programs of a row. UNIT: channels that are read at once; `channels`, x_n, x_h and x_w are in units of so many.
    """
    row = tl.program_id(0) // blocks
    n = (row // rows).to(tl.int64)
    h = row % rows
    offs = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    length = columns.to(tl.int64) * CHANNELS
    w = offs // CHANNELS - left
    c = offs % CHANNELS
    inside = (c < channels * UNIT) & (w >= 0) & (w < width) & (h < height)
    place = (n * x_n + h.to(tl.int64) * x_h + w * x_w) * UNIT
    x = tl.load(x_ptr + (place + c * x_c), mask=inside, other=0.0)
    tl.store(y_ptr + row.to(tl.int64) * length + offs, x, mask=offs < length)


@plan
def _copying(x: Images, rows: int, left: int, columns: int, channels: int) -> Launch:
    """The launch, of the copy and of x."""
    count, real, height, width = x.shape
    by_n, by_c, by_h, by_w = x.strides
    blocks = cdiv(columns * channels, NUMBERS)
    unit = gcd(VECTOR, real, *(by_n, by_h, by_w) if x.channels_last else (1,))
    return Launch(
        conv2d_fold_kernel, (count * rows * blocks,), real // unit, rows, height, width, left, columns, blocks,
        by_n // unit, by_c, by_h // unit, by_w // unit, CHANNELS=channels, UNIT=unit, BLOCK=NUMBERS,
    )  # fmt: skip


def copied(x: torch.Tensor, rows: int, left: int, columns: int, channels: int) -> torch.Tensor:
    """x [N C H W] as [N, rows, columns, channels], from `left` columns before the first one on.

    What x has nothing for is zero.
    """
    copy = x.new_empty(len(x), rows, columns, channels)
    _copying(images(x), rows, left, columns, channels)(copy, x)
    return copy


def padded(x: torch.Tensor, channels: int) -> torch.Tensor:
    """A channels-last copy with so many channels, of which those that x has not are zero."""
    return copied(x, x.shape[2], 0, x.shape[3], channels).permute(0, 3, 1, 2)
