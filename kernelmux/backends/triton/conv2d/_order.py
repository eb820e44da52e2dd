"""Images and kernels in the other order of memory, or with more channels, where the copy engine or the caller wants it."""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch.launch import Config, Ints, Launch, cdiv, plan, processors
from kernelmux.backends.triton._rows.rows import next_power
from kernelmux.backends.triton.conv2d._problem import VECTOR, Images, images, planes_of
from kernelmux.registry.spec.sliding_windows import Window
from kernelmux.registry.util.memory_format import fresh

BLOCK = 128  # channels and places of a tile, which is turned in shared memory
# The same at most where pixels are read one by one or by twos: registers hold an address for each of these, and only of few
# an SM has enough for several programs.
SINGLY = 64
NUMBERS = 1024  # of a program that copies line by line
PROGRAMS = 6  # that an SM has shared memory for
LINE = tl.constexpr(VECTOR)
SECTOR = 2 * VECTOR  # elements of 32 bytes, which L2 reads at once
WIDE = 64  # channels at most that a box brings, of which those of a copy are a multiple
COPIED = 33  # channels from which on images are copied with some more; below, a fold of them has fewer terms


@triton.jit
def conv2d_first_kernel(
    y_ptr, x_ptr, images, channels, places,
    UNIT_C: tl.constexpr, UNIT_P: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """Contiguous y [images channels places] from x [images places channels]. UNIT_C, UNIT_P: channels and places come in
    units of so many, so that the compiler sees which vectors there are."""
    channels *= UNIT_C
    places *= UNIT_P
    tiles_p = tl.cdiv(places, BLOCK_P)
    tiles = tl.cdiv(channels, BLOCK_C) * tiles_p
    for index in range(tl.program_id(0), images * tiles, tl.num_programs(0)):
        n = (index // tiles).to(tl.int64) * channels * places
        tile = index % tiles
        c = (tile // tiles_p * BLOCK_C + tl.arange(0, BLOCK_C)).to(tl.int64)[:, None]
        p = (tile % tiles_p * BLOCK_P + tl.arange(0, BLOCK_P)).to(tl.int64)[None, :]
        inside = (c < channels) & (p < places)
        x = tl.load(x_ptr + n + (c + p * channels), mask=inside)
        tl.store(y_ptr + n + (c * places + p), x, mask=inside)


@triton.jit
def _turn(
    y_ptr, x_ptr, program, programs, images, channels, plane, height, width, by_h, by_w, deep, places, columns,
    GROWN: tl.constexpr, UNIT: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """y [images places deep] from x [images channels plane], zero where x has nothing. GROWN: y has other rows and columns
    than x, or those of x do not lie side by side, but by_h and by_w apart. `plane` comes in units of UNIT, so that the
    compiler sees which vectors there are, and `deep` in whole vectors."""
    plane *= UNIT
    deep *= LINE
    tiles_p = tl.cdiv(places, BLOCK_P)
    tiles = tl.cdiv(deep, BLOCK_C) * tiles_p
    for index in range(program, images * tiles, programs):
        n = (index // tiles).to(tl.int64)
        tile = index % tiles
        c = (tile // tiles_p * BLOCK_C + tl.arange(0, BLOCK_C)).to(tl.int64)[:, None]
        p = (tile % tiles_p * BLOCK_P + tl.arange(0, BLOCK_P))[None, :]
        if GROWN:
            h = p // columns
            w = p % columns
            at = h.to(tl.int64) * by_h + w.to(tl.int64) * by_w
            inside = (c < channels) & (h < height) & (w < width)
        else:
            at = p.to(tl.int64)
            inside = (c < channels) & (p < plane)
        x = tl.load(x_ptr + n * channels * plane + (c * plane + at), mask=inside, other=0.0)
        tl.store(y_ptr + n * places * deep + (p.to(tl.int64) * deep + c), x, mask=(c < deep) & (p < places))


@triton.jit
def conv2d_last_kernel(
    y_ptr, x_ptr, other_ptr, z_ptr, programs,
    images, channels, plane, height, width, by_h, by_w, deep, places, columns,
    count, inputs, taps, taps_h, taps_w, by_r, by_s, depth, positions, across,
    GROWN: tl.constexpr, UNIT: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr,
    OTHER_GROWN: tl.constexpr, OTHER_UNIT: tl.constexpr, OTHER_C: tl.constexpr, OTHER_P: tl.constexpr,
):  # fmt: skip
    """`_turn` x by so many programs, and by the others, if there are more, z."""
    if tl.program_id(0) < programs:
        _turn(
            y_ptr, x_ptr, tl.program_id(0), programs, images, channels, plane, height, width, by_h, by_w, deep, places,
            columns, GROWN, UNIT, BLOCK_C, BLOCK_P,
        )  # fmt: skip
    else:
        _turn(
            other_ptr, z_ptr, tl.program_id(0) - programs, tl.num_programs(0) - programs,
            count, inputs, taps, taps_h, taps_w, by_r, by_s, depth, positions, across,
            OTHER_GROWN, OTHER_UNIT, OTHER_C, OTHER_P,
        )  # fmt: skip


def _block(channels: int, places: int) -> Ints:
    """Of a tile that is turned in shared memory."""
    wide = BLOCK if channels % VECTOR == 0 else BLOCK // 2  # registers hold an address for each element there
    return min(BLOCK, next_power(channels)), min(wide, next_power(places))


@plan
def _first(device: int, images: int, channels: int, places: int) -> Launch:
    """The launch, of contiguous images and of channels-last ones."""
    block_c, block_p = _block(channels, places)
    tiles = images * cdiv(channels, block_c) * cdiv(places, block_p)
    programs = min(PROGRAMS * processors(device), tiles)
    unit_c, unit_p = gcd(channels, VECTOR), gcd(places, VECTOR)
    return Launch(
        conv2d_first_kernel, (programs,), images, channels // unit_c, places // unit_p,
        UNIT_C=unit_c, UNIT_P=unit_p, BLOCK_C=block_c, BLOCK_P=block_p, num_warps=8,
    )  # fmt: skip


class ImageCopy(NamedTuple):
    """What a channels-last copy is to have: rows, columns and channels. Zeros are what its source has not."""

    rows: int
    columns: int
    channels: int

    def empty(self, x: torch.Tensor) -> torch.Tensor:
        """The copy of x, as [N rows columns channels]."""
        return x.new_empty(len(x), *self)


@plan
def _last(device: int, *copies: tuple[Images, ImageCopy]) -> Launch:
    """The launch, of each copy and of its source, which has planes; of a single one twice."""
    numbers: list[Ints] = []
    blocks: list[Ints] = []
    programs: list[int] = []
    for x, made in copies:
        (n, c, h, w), (_, *by) = x.shape, x.strides
        places = made.rows * made.columns
        grown = (made.rows, made.columns) != (h, w) or by != [h * w, w, 1]
        unit = 1 if grown else gcd(by[0], VECTOR)
        block = _block(made.channels, places)
        if 2 * unit < VECTOR:
            wide = min(SINGLY, block[1])
            block = min(block[0], SINGLY * SINGLY // wide), wide
        numbers.append((n, c, by[0] // unit, h, w, *by[1:], made.channels // VECTOR, places, made.columns))
        blocks.append((grown, unit, *block))
        tiles = n * cdiv(made.channels, block[0]) * cdiv(places, block[1])
        programs.append(min(PROGRAMS * processors(device), tiles))
    names = ("GROWN", "UNIT", "BLOCK_C", "BLOCK_P"), ("OTHER_GROWN", "OTHER_UNIT", "OTHER_C", "OTHER_P")
    settings: Config = {**dict(zip(names[0], blocks[0], strict=True)), **dict(zip(names[1], blocks[-1], strict=True))}
    return Launch(
        conv2d_last_kernel, (sum(programs),), programs[0], *numbers[0], *numbers[-1], num_warps=8, **settings
    )  # fmt: skip


def channels_first(x: torch.Tensor) -> torch.Tensor:
    """Channels-last images without gaps as contiguous ones: themselves where they are both."""
    if x.is_contiguous() or not x.numel():
        return fresh(x, torch.contiguous_format)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _first(x.get_device(), len(x), x.shape[1], x.shape[2] * x.shape[3])(y, x)
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


def wanted(
    x: torch.Tensor, joined: bool = False, again: bool = False, over: tuple[Window, Window] | None = None
) -> ImageCopy | None:
    """The copy of images or kernels that the copy engine needs, if it cannot read themselves: one that is channels-last,
    and has more channels where theirs are no whole vectors, or no whole sectors.

    joined: with no gap between the channels of a column and those of the next one. again: at several taps, which makes
    reading half sectors slower than copying. H200, 64 of 3 x 3 on 32x40x56x56: 66 us; 128 on 50 channels, copied, 43.
    over: whole numbers of strides high and wide.
    """
    channels, (rows, columns) = x.shape[1], x.shape[2:]
    if channels % VECTOR or (again and channels >= COPIED and channels % SECTOR):
        channels = cdiv(channels, WIDE) * WIDE
    if over:
        rows, columns = (cdiv(n, w.stride) * w.stride for n, w in zip(x.shape[2:], over, strict=True))
    apart = [s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1 and s != 1]
    whole = not any(s % VECTOR or s == 0 or s >= 2**39 for s in apart) and x.data_ptr() % 16 == 0
    lines = x.stride(1) == 1 and len(apart) >= sum(n > 1 for n in x.shape) - 1
    fits = whole and lines and not (joined and x.stride(3) != x.shape[1])
    return None if fits and (channels, rows, columns) == x.shape[1:] else ImageCopy(rows, columns, channels)


def copies(*given: tuple[torch.Tensor, ImageCopy | None]) -> list[torch.Tensor]:
    """Images or kernels, those with a copy as that. One launch makes those of two that have planes."""
    found = [x if to is None else to.empty(x).permute(0, 3, 1, 2) for x, to in given]
    lie = [None if to is None or not x.numel() else planes_of(x) for x, to in given]
    turned = [(i, x, to) for i, (x, (_, to)) in enumerate(zip(lie, given, strict=True)) if x and to]
    for i, (x, to) in enumerate(given):
        if to is not None and lie[i] is None:
            if x.shape[1:] == found[i].shape[1:]:
                found[i].copy_(x)
            else:
                _copying(images(x), to.rows, 0, to.columns, to.channels)(found[i].permute(0, 2, 3, 1), x)
    if turned:
        launch = _last(given[0][0].get_device(), *((x, to) for _, x, to in turned))
        launch(*(t for i, *_ in (turned[0], turned[-1]) for t in (found[i], given[i][0])))
    return found


def readable(x: torch.Tensor, joined: bool = False, again: bool = False) -> torch.Tensor:
    """x as the copy engine can read it, itself or a copy."""
    return copies((x, wanted(x, joined, again)))[0]
