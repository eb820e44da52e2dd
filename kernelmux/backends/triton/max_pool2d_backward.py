"""Gradient of max_pool2d in Triton: each element looks at the windows that can hold it; no atomics."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._families.windows import UNROLLED, coordinates, placed, position
from kernelmux.backends.triton._launch.launch import Launch, cdiv, plan
from kernelmux.backends.triton._launch.strides import Ints
from kernelmux.backends.triton.max_pool2d import by_lines, lines
from kernelmux.registry.backend import Implementation
from kernelmux.registry.spec.sliding_windows import Pair, four_strides, planes
from kernelmux.registry.util.memory_format import format_of

LINE_ELEMENTS = 256  # blocks of elements of a program that writes whole lines


@triton.jit
def _gather(total, grads, indices, h, w, oh, ow, W, kernel, stride, padding, steps, index_steps, mask):
    """Adds what one window gives to each element: its gradient, if it has the element and its index names that."""
    down, along = h + padding[0] - oh * stride[0], w + padding[1] - ow * stride[1]
    inside = mask & (oh >= 0) & (ow >= 0) & (down < kernel[0]) & (along < kernel[1])
    row, column = oh.to(tl.int64), ow.to(tl.int64)
    at = tl.load(indices + (row * index_steps[2] + column * index_steps[3]), mask=inside, other=-1)
    g = tl.load(grads + (row * steps[2] + column * steps[3]), mask=inside, other=0.0).to(tl.float32)
    return total + tl.where(inside & (at == h * W + w), g, 0.0)


@triton.jit
def max_pool2d_backward_kernel(
    out_ptr, grad_ptr, index_ptr, rows, columns, C, size, counts, kernel, stride, padding, shared, steps, index_steps,
    SHARED_H: tl.constexpr, SHARED_W: tl.constexpr, CHANNELS: tl.constexpr, INDEX: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """shared: windows along H and W that may hold one element; SHARED: the same, or 0 where the loops are not unrolled."""
    r, q = position(columns, INDEX, BLOCK_R, BLOCK_Q)
    mask = (r < rows) & (q < columns)
    n, c, h, w = coordinates(r, q, C, size[0], size[1], CHANNELS)
    last_row = tl.minimum((h + padding[0]) // stride[0], counts[0] - 1)
    last_column = tl.minimum((w + padding[1]) // stride[1], counts[1] - 1)
    grads = grad_ptr + n * steps[0] + c * steps[1]
    indices = index_ptr + n * index_steps[0] + c * index_steps[1]

    total = tl.zeros([BLOCK_R, BLOCK_Q], tl.float32)
    if SHARED_H > 0:
        for i in tl.static_range(SHARED_H):
            for j in tl.static_range(SHARED_W):
                total = _gather(
                    total, grads, indices, h, w, last_row - i, last_column - j, size[1],
                    kernel, stride, padding, steps, index_steps, mask,
                )  # fmt: skip
    else:
        for i in range(shared[0]):
            for j in range(shared[1]):
                total = _gather(
                    total, grads, indices, h, w, last_row - i, last_column - j, size[1],
                    kernel, stride, padding, steps, index_steps, mask,
                )  # fmt: skip
    tl.store(out_ptr + r.to(tl.int64) * columns + q, total.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _take(total, g, at, here, DOWN: tl.constexpr, ALONG: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr):
    """Adds what a window gives to an element that is DOWN and ALONG from where it begins, where its index names that."""
    if DOWN >= 0 and DOWN < KH and ALONG >= 0 and ALONG < KW:
        total += tl.where(at == here, g, 0.0)
    return total


@triton.jit
def _store_line(line, w, rows, width, even, odd, SW: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_Q: tl.constexpr):
    sums = even
    if SW == 2:
        sums = tl.reshape(tl.join(even, odd), [BLOCK_R, 2 * BLOCK_Q])
    tl.store(line + w, sums.to(line.dtype.element_ty), mask=rows & (w < width))


@triton.jit
def max_pool2d_backward_lines_kernel(
    out_ptr, grad_ptr, index_ptr, lines, height, pieces, oh, out_pieces,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    PIECE: tl.constexpr, OUT_PIECE: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """Planes without gaps in blocks of SH x SW elements, up to 2 x 2, of which a program takes BLOCK_R x BLOCK_Q.

    lines: rows of such blocks in all planes. W and OW are pieces * PIECE, so that the compiler knows how lines are aligned.
    """
    width, ow, down = pieces * PIECE, out_pieces * OUT_PIECE, tl.cdiv(height, SH)
    tiles = tl.cdiv(tl.cdiv(width, SW), BLOCK_Q)
    pid = tl.program_id(0)
    r = pid // tiles * BLOCK_R + tl.arange(0, BLOCK_R)[:, None]
    first = pid % tiles * BLOCK_Q
    q = first + tl.arange(0, BLOCK_Q)[None, :]
    plane, i = (r // down).to(tl.int64), r % down
    here = i * SH * width + q * SW

    zero = tl.zeros([BLOCK_R, BLOCK_Q], tl.float32)
    s00, s01, s10, s11 = zero, zero, zero, zero
    for o in tl.static_range(-((KH - 1 - PH) // SH), (SH - 1 + PH) // SH + 1):
        row = i + o
        there = (r < lines) & (row >= 0) & (row < oh)
        line = (plane * oh + row) * ow
        for p in tl.static_range(-((KW - 1 - PW) // SW), (SW - 1 + PW) // SW + 1):
            inside = there & (q + p < ow)
            if p < 0:
                inside = inside & (q + p >= 0)
            at = tl.load(index_ptr + line + (q + p), mask=inside, other=-1)
            g = tl.load(grad_ptr + line + (q + p), mask=inside, other=0.0).to(tl.float32)
            s00 = _take(s00, g, at, here, PH - o * SH, PW - p * SW, KH, KW)
            if SW == 2:
                s01 = _take(s01, g, at, here + 1, PH - o * SH, PW - p * SW + 1, KH, KW)
            if SH == 2:
                s10 = _take(s10, g, at, here + width, PH - o * SH + 1, PW - p * SW, KH, KW)
            if SH == 2 and SW == 2:
                s11 = _take(s11, g, at, here + width + 1, PH - o * SH + 1, PW - p * SW + 1, KH, KW)

    w = first * SW + tl.arange(0, SW * BLOCK_Q)[None, :]
    to = out_ptr + (plane * height + i * SH) * width
    _store_line(to, w, r < lines, width, s00, s01, SW, BLOCK_R, BLOCK_Q)
    if SH == 2:
        _store_line(to + width, w, (r < lines) & (i * SH + 1 < height), width, s10, s11, SW, BLOCK_R, BLOCK_Q)


def max_pool2d_backward(
    grad_out: torch.Tensor, index: torch.Tensor, size: Pair, kernel: Pair, stride: Pair, padding: Pair
) -> torch.Tensor:
    form, shape = format_of(index), (*grad_out.shape[:-2], *size)
    last = form == torch.channels_last
    out = torch.empty(shape, dtype=grad_out.dtype, device=grad_out.device, memory_format=form)
    if out.numel():
        counts = (grad_out.shape[-2], grad_out.shape[-1])
        steps = four_strides(grad_out), four_strides(index)
        _plan(planes(grad_out), size, counts, kernel, stride, padding, *steps, last)(out, grad_out, index)
    return out


@plan
def _plan(
    batch: Pair, size: Pair, counts: Pair, kernel: Pair, stride: Pair, padding: Pair, steps: Ints, index_steps: Ints,
    last: bool,
) -> Launch:  # fmt: skip
    dense = all(by_lines(batch, counts, strides, kernel, stride) for strides in (steps, index_steps))
    if dense and not last:
        tiled = (cdiv(size[0], stride[0]), cdiv(size[1], stride[1]))
        windows = (kernel, stride, padding)
        return lines(max_pool2d_backward_lines_kernel, LINE_ELEMENTS, batch, tiled, size, counts, windows)
    at = placed(*batch, size[0] * size[1], last)
    shared = tuple(min(cdiv(k, s), n) for k, s, n in zip(kernel, stride, counts, strict=True))
    down, along = shared if shared[0] * shared[1] <= UNROLLED else (0, 0)
    return Launch(
        max_pool2d_backward_kernel, (at.programs,), at.rows, at.columns, batch[1], size, counts, kernel, stride, padding,
        shared, steps, index_steps, SHARED_H=down, SHARED_W=along, CHANNELS=last, INDEX=at.index,
        BLOCK_R=at.block_r, BLOCK_Q=at.block_q, num_warps=4,
    )  # fmt: skip


VARIANTS = {
    "windows": Implementation(
        fn=max_pool2d_backward,
        idea="elements gather from the windows that can hold them, 2 x 2 at once",
    )
}
