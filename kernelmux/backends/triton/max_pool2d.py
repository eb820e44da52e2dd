"""Largest elements of windows in Triton: images are read where they lie, overlaps of windows come from the caches."""

from __future__ import annotations

from math import gcd, prod
from typing import Any

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._families.windows import ELEMENTS, UNROLLED, coordinates, placed, position
from kernelmux.backends.triton._launch.division import quotient, reciprocal
from kernelmux.backends.triton._launch.launch import Launch, cdiv, plan
from kernelmux.backends.triton._launch.strides import Ints
from kernelmux.backends.triton._rows.rows import next_power
from kernelmux.registry.backend import Implementation
from kernelmux.registry.spec.sliding_windows import Pair, Window, four_strides, planes
from kernelmux.registry.util.memory_format import format_of

# Elements and warps of a program of small windows, and how many of these are one below the other, by whether channels lie
# side by side. H200, bf16, 3 x 3, stride 2: 64 x 64 x 112 x 112 with channels last 50.6 us, two rows 53.6, one row 60.8;
# 64 x 96 x 113 x 113 119 us, with 256 elements 133, and of one row 148.
SMALL = {True: (512, 4, 3), False: (128, 2, 2)}
# Results up to which a program makes one row of OF_FEW, or as many from whole lines: what counts then is how long a thread
# takes. H200, us: fp32 1 x 128 x 112 x 17 with channels last 6.3, else 7.8; bf16 2 x 128 x 7 x 16 5.7, else 6.2.
FEW, OF_FEW = 2**17, 128
# Results of a program of all results in one row, for planes whose lines are no multiples of 4 elements. Each reads its
# window alone, of at most ALONE times as many lines as two that share some. H200, us, bf16, stride 2: 2 x 2 of
# 126 x 96 x 27 x 27 14.8, plane by plane 21.3; 3 x 3 of 128 x 192 x 27 x 27 28.1 and 40.4; 2 x 2 of 126 x 96 x 28 x 28,
# whose lines are such multiples, 15.7, by whole lines 15.5.
FLAT, ALONE = 256, 1.25
LINE_ELEMENTS, LONGEST = 512, 128  # results of a program that reads whole lines, at most so many in a line


@triton.jit
def _number(x):
    """fp32 of each element; of bf16 by its bits, since the compiler would compare pairs of bf16, which takes more steps."""
    if x.dtype == tl.bfloat16:
        return (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return x.to(tl.float32)


@triton.jit
def _better(best, at, x, place):
    """The better of the best so far and of one element of each window: a larger one, or NaN."""
    better = (x > best) | (x != x)
    return tl.where(better, x, best), tl.where(better, place, at)


@triton.jit
def max_pool2d_kernel(
    y_ptr, index_ptr, x_ptr, rows, columns, C, size, counts, kernel, stride, padding, strides,
    CHANNELS: tl.constexpr, INDEX: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """Large windows. size, counts: H, W and OH, OW."""
    r, q = position(columns, INDEX, BLOCK_R, BLOCK_Q)
    mask = (r < rows) & (q < columns)
    n, c, oh, ow = coordinates(r, q, C, counts[0], counts[1], CHANNELS)
    top, left = oh * stride[0] - padding[0], ow * stride[1] - padding[1]
    bottom, right = tl.minimum(top + kernel[0], size[0]) - 1, tl.minimum(left + kernel[1], size[1]) - 1
    top, left = tl.maximum(top, 0), tl.maximum(left, 0)
    image = x_ptr + n * strides[0] + c * strides[1]

    best = tl.full([BLOCK_R, BLOCK_Q], float("-inf"), tl.float32)
    at = tl.zeros([BLOCK_R, BLOCK_Q], tl.int32) + (top * size[1] + left)
    # Elements beyond the end of a clipped window are its last ones once more: neither the largest nor the first changes.
    for i in range(tl.minimum(kernel[0], size[0])):
        for j in range(tl.minimum(kernel[1], size[1])):
            h, w = tl.minimum(top + i, bottom), tl.minimum(left + j, right)
            x = _number(tl.load(image + (h.to(tl.int64) * strides[2] + w.to(tl.int64) * strides[3]), mask=mask))
            best, at = _better(best, at, x, h * size[1] + w)

    offs = r.to(tl.int64) * columns + q
    tl.store(y_ptr + offs, best.to(y_ptr.dtype.element_ty), mask=mask)
    tl.store(index_ptr + offs, at, mask=mask)


@triton.jit
def _best_of_line(image, h, left, W, strides, mask, KW: tl.constexpr, DENSE: tl.constexpr):
    """Of each window the best element of line h, and its place in the image. Those beside it are its nearest ones."""
    for j in tl.static_range(KW):
        w = tl.minimum(tl.maximum(left + j, 0), W - 1)
        place = h * W + w
        offset = place * strides[3] if DENSE else h.to(tl.int64) * strides[2] + w.to(tl.int64) * strides[3]
        x = _number(tl.load(image + offset, mask=mask))
        if j == 0:
            best, at = x, tl.zeros(x.shape, tl.int32) + place
        else:
            best, at = _better(best, at, x, place)
    return best, at


@triton.jit
def _best_so_far(
    best, at, line, place, i: tl.constexpr, KH: tl.constexpr, SH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Of ROWS windows one below the other, of which the first begins i lines above this one."""
    larger = ()
    places = ()
    for k in tl.static_range(ROWS):
        if i == k * SH:
            value, there = line, place
        elif i > k * SH and i < k * SH + KH:
            value, there = _better(best[k], at[k], line, place)
        elif i > k * SH:
            value, there = best[k], at[k]
        if i >= k * SH:
            larger += (value,)  # type: ignore[assignment]
            places += (there,)  # type: ignore[assignment]
    return larger, places


@triton.jit
def max_pool2d_small_kernel(
    y_ptr, index_ptr, x_ptr, rows, columns, C, size, counts, down, strides,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, DENSE: tl.constexpr, INDEX: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """ROWS windows one below the other share the best elements of the lines that they have in common.

    down: rows of such in an image. DENSE: pixels at equal distances.
    """
    r, q = position(columns, INDEX, BLOCK_R, BLOCK_Q)
    mask = (r < rows) & (q < columns)
    n, c, first, ow = coordinates(r, q, C, down, counts[1], CHANNELS)
    oh = first * ROWS
    top, left = oh * SH - PH, ow * SW - PW
    image = x_ptr + n * strides[0] + c * strides[1]
    state = ((), ())
    for i in tl.static_range((ROWS - 1) * SH + KH):
        # Lines outside of the image stand for its nearest ones, which are in the window too.
        h = tl.minimum(tl.maximum(top + i, 0), size[0] - 1)
        line, place = _best_of_line(image, h, left, size[1], strides, mask, KW, DENSE)
        state = _best_so_far(state[0], state[1], line, place, i, KH, SH, ROWS)
    for k in tl.static_range(ROWS):
        pixel = ((n if CHANNELS else n * C + c) * counts[0] + oh + k) * counts[1] + ow
        offs = pixel * C + c if CHANNELS else pixel
        _store(y_ptr + offs, index_ptr + offs, state, k, mask & (oh + k < counts[0]))


@triton.jit
def _store(y, index, state, k: tl.constexpr, mask):
    tl.store(y, state[0][k].to(y.dtype.element_ty), mask=mask)
    tl.store(index, state[1][k], mask=mask)


@triton.jit
def _line(line, w, width, BEFORE: tl.constexpr):
    """Elements w of a line; BEFORE: whether some may lie before the image. Those beside it are -inf."""
    inside = (w >= 0) & (w < width) if BEFORE else w < width
    return _number(tl.load(line + w, mask=inside, other=float("-inf")))


@triton.jit
def _better_at(best, at, x, PLACE: tl.constexpr):
    """As _better, with the place in the window; the first element needs no comparison."""
    if PLACE == 0:
        return x, at
    return _better(best, at, x, PLACE)


@triton.jit
def max_pool2d_lines_kernel(
    y_ptr, index_ptr, x_ptr, lines, height, pieces, oh, out_pieces,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    PIECE: tl.constexpr, OUT_PIECE: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """Planes without gaps: rows of windows [lines], of which a program takes BLOCK_R x BLOCK_Q and reads whole lines.

    W and OW are pieces * PIECE, so that the compiler knows how lines are aligned.
    """
    PAIRS: tl.constexpr = SW == 2 and PIECE >= 4  # read as vectors; else element by element
    width, ow = pieces * PIECE, out_pieces * OUT_PIECE
    tiles = tl.cdiv(ow, BLOCK_Q)
    pid = tl.program_id(0)
    r = pid // tiles * BLOCK_R + tl.arange(0, BLOCK_R)[:, None]
    first = pid % tiles * BLOCK_Q
    q = first + tl.arange(0, BLOCK_Q)[None, :]
    plane, top = (r // oh).to(tl.int64), r % oh * SH - PH
    plane = tl.minimum(plane, (lines - 1) // oh)
    left = q * SW - PW

    best = tl.full([BLOCK_R, BLOCK_Q], float("-inf"), tl.float32)
    at = tl.maximum(-top, 0) * KW + tl.maximum(-left, 0)
    for i in tl.static_range(KH):
        h = tl.minimum(tl.maximum(top + i, 0), height - 1)
        line = x_ptr + (plane * height + h) * width
        if PAIRS:
            for d in tl.static_range(-((PW + 1) // 2), (KW - 1 - PW) // 2 + 1):
                w = (first * 2 + tl.arange(0, 2 * BLOCK_Q))[None, :] + 2 * d
                even, odd = tl.split(tl.reshape(_line(line, w, width, d < 0), [BLOCK_R, BLOCK_Q, 2]))
                if 2 * d + PW >= 0:
                    best, at = _better_at(best, at, even, i * KW + 2 * d + PW)
                if 2 * d + 1 + PW < KW:
                    best, at = _better_at(best, at, odd, i * KW + 2 * d + 1 + PW)
        else:
            for j in tl.static_range(KW):
                best, at = _better_at(best, at, _line(line, left + j, width, j < PW), i * KW + j)

    mask = (r < lines) & (q < ow)
    offs = r.to(tl.int64) * ow + q
    place = tl.minimum(tl.maximum(top + at // KW, 0), height - 1) * width + left + at % KW
    tl.store(y_ptr + offs, best.to(y_ptr.dtype.element_ty), mask=mask)
    tl.store(index_ptr + offs, place, mask=mask)


@triton.jit(do_not_specialize=range(3, 12))
def max_pool2d_flat_kernel(
    y_ptr, index_ptr, x_ptr, results, height, width, oh, ow, by_ow, shift_ow, by_oh, shift_oh,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Planes without gaps, small windows: all results in one row, so that every thread has one whatever lines are long."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < results
    line = quotient(i, ow, by_ow, shift_ow)
    plane = quotient(line, oh, by_oh, shift_oh)
    top, left = (line - plane * oh) * SH - PH, (i - line * ow) * SW - PW
    image = x_ptr + plane.to(tl.int64) * (height * width)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    at = tl.zeros([BLOCK], tl.int32)
    for r in tl.static_range(KH):
        for s in tl.static_range(KW):
            if PH > 0 or PW > 0:
                # Elements outside of the image stand for its nearest ones, which are in the window too.
                h = tl.minimum(tl.maximum(top + r, 0), height - 1)
                place = h * width + tl.minimum(tl.maximum(left + s, 0), width - 1)
            else:
                place = top * width + left + (r * width + s)
            x = _number(tl.load(image + place, mask=inside, other=0.0))
            if r + s == 0:
                best, at = x, place
            else:
                best, at = _better(best, at, x, place)
    tl.store(y_ptr + i, best.to(y_ptr.dtype.element_ty), mask=inside)
    tl.store(index_ptr + i, at, mask=inside)


def _dense(batch: Pair, size: Pair, strides: Ints) -> bool:
    """Whether planes lie one behind the other without gaps."""
    (n, c), (h, w) = batch, size
    return strides[2:] == (w, 1) and strides[1] == h * w and (n == 1 or strides[0] == c * h * w)


def by_lines(batch: Pair, size: Pair, strides: Ints, kernel: Pair, stride: Pair) -> bool:
    """Whether images have no gaps, and small windows lie close enough for programs that read whole lines."""
    dense, few = _dense(batch, size, strides), kernel[0] * kernel[1] <= UNROLLED
    return dense and max(stride) <= 2 and few and prod(batch) * (size[0] + 1) < 2**30


def lines(
    fn: Any, elements: int, batch: Pair, tiled: Pair, size: Pair, counts: Pair, windows: tuple[Pair, Pair, Pair]
) -> Launch:
    """A launch over all planes, each of `tiled` rows and columns, of which a program takes so many elements."""
    rows, (oh, ow), (h, w) = batch[0] * batch[1] * tiled[0], counts, size
    block_q = min(next_power(tiled[1]), LONGEST)
    block_r = min(max(elements // block_q, 1), next_power(rows))
    pieces, out_pieces = gcd(w, 8), gcd(ow, 8)
    (kh, kw), (sh, sw), (ph, pw) = windows
    return Launch(
        fn, (cdiv(rows, block_r) * cdiv(tiled[1], block_q),), rows, h, w // pieces, oh, ow // out_pieces,
        KH=kh, KW=kw, SH=sh, SW=sw, PH=ph, PW=pw, PIECE=pieces, OUT_PIECE=out_pieces, BLOCK_R=block_r, BLOCK_Q=block_q,
        num_warps=2,
    )  # fmt: skip


def max_pool2d(x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair) -> tuple[torch.Tensor, torch.Tensor]:
    size, form = (x.shape[-2], x.shape[-1]), format_of(x)
    sides = zip(size, kernel, stride, padding, strict=True)
    counts = tuple(Window(k, s, p).places(n) for n, k, s, p in sides)
    last, shape = form == torch.channels_last, (*x.shape[:-2], *counts)
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=form)
    index = torch.empty(shape, dtype=torch.int32, device=x.device, memory_format=form)
    if y.numel():
        _plan(planes(x), size, counts, kernel, stride, padding, four_strides(x), last)(y, index, x)
    return y, index


@plan
def _plan(
    batch: Pair, size: Pair, counts: Pair, kernel: Pair, stride: Pair, padding: Pair, strides: Ints, last: bool
) -> Launch:
    few = prod(batch) * prod(counts) <= FEW
    if not last and size[1] % 4 == 0 and by_lines(batch, size, strides, kernel, stride):
        windows = (kernel, stride, padding)
        return lines(max_pool2d_lines_kernel, OF_FEW if few else LINE_ELEMENTS, batch, counts, size, counts, windows)
    if kernel[0] * kernel[1] > UNROLLED:
        at = placed(*batch, counts[0] * counts[1], last, ELEMENTS if last else LINE_ELEMENTS // 2)
        return Launch(
            max_pool2d_kernel, (at.programs,), at.rows, at.columns, batch[1], size, counts, kernel, stride, padding,
            strides, CHANNELS=last, INDEX=at.index, BLOCK_R=at.block_r, BLOCK_Q=at.block_q, num_warps=4 if last else 2,
        )  # fmt: skip
    results, (kh, kw), (sh, sw), (ph, pw) = prod(batch) * prod(counts), kernel, stride, padding
    shared = (sh + kh) / 2 if kh > sh else kh  # lines for each of two windows, one below the other
    flat = size[1] % 4 and results < 2**30 and prod(size) < 2**30 and _dense(batch, size, strides)
    if flat and not last and kh <= ALONE * shared:
        return Launch(
            max_pool2d_flat_kernel, (cdiv(results, FLAT),), results, *size, *counts, *reciprocal(counts[1]),
            *reciprocal(counts[0]), KH=kh, KW=kw, SH=sh, SW=sw, PH=ph, PW=pw, BLOCK=FLAT, num_warps=4,
        )  # fmt: skip
    elements, warps, most = (OF_FEW, 4, 1) if few and last and kernel[0] > stride[0] else SMALL[last]
    rows = most if kernel[0] > stride[0] else 1
    down = cdiv(counts[0], rows)
    at = placed(*batch, down * counts[1], last, elements)
    dense = strides[2] == size[1] * strides[3] and size[0] * strides[2] < 2**31
    return Launch(
        max_pool2d_small_kernel, (at.programs,), at.rows, at.columns, batch[1], size, counts, down, strides,
        KH=kh, KW=kw, SH=sh, SW=sw, PH=ph, PW=pw, ROWS=rows, CHANNELS=last, DENSE=dense, INDEX=at.index,
        BLOCK_R=at.block_r, BLOCK_Q=at.block_q, num_warps=warps,
    )  # fmt: skip


VARIANTS = {
    "windows": Implementation(
        fn=max_pool2d, idea="both formats where they lie; whole lines in vectors, whose even and odd elements are split"
    )
}
