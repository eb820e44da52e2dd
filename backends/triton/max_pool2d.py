"""Largest elements of windows in Triton: images are read where they lie, overlaps of windows come from the caches."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch import Launch, plan
from kernelmux.backends.triton._strides import Ints
from kernelmux.backends.triton._windows import ELEMENTS, UNROLLED, coordinates, placed, position
from kernelmux.registry.backend import Implementation
from kernelmux.registry.memory_order import format_of
from kernelmux.registry.windows import Pair, Window, four_strides, planes


@triton.jit
def _compare(best, at, image, h, w, W, strides, mask, DENSE: tl.constexpr):
    """The better of the best so far and of one element of each window: a larger one, or NaN."""
    place = h * W + w
    offset = place if DENSE else h.to(tl.int64) * strides[2] + w.to(tl.int64) * strides[3]
    x = tl.load(image + offset, mask=mask).to(tl.float32)
    better = (x > best) | (x != x)
    return tl.where(better, x, best), tl.where(better, place, at)


@triton.jit
def max_pool2d_kernel(
    y_ptr, index_ptr, x_ptr, rows, columns, C, size, counts, kernel, stride, padding, strides,
    KH: tl.constexpr, KW: tl.constexpr, CHANNELS: tl.constexpr, DENSE: tl.constexpr, INDEX: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """size, counts: H, W and OH, OW. DENSE: planes without gaps. KH, KW: the kernel, or 0 where its loops are not unrolled.

    Elements beyond the end of a clipped window are its last ones once more: neither the largest nor the first changes.
    """
    r, q = position(columns, INDEX, BLOCK_R, BLOCK_Q)
    mask = (r < rows) & (q < columns)
    n, c, oh, ow = coordinates(r, q, C, counts[0], counts[1], CHANNELS)
    top, left = oh * stride[0] - padding[0], ow * stride[1] - padding[1]
    bottom, right = tl.minimum(top + kernel[0], size[0]) - 1, tl.minimum(left + kernel[1], size[1]) - 1
    top, left = tl.maximum(top, 0), tl.maximum(left, 0)
    image = x_ptr + n * strides[0] + c * strides[1]

    best = tl.full([BLOCK_R, BLOCK_Q], float("-inf"), tl.float32)
    at = tl.zeros([BLOCK_R, BLOCK_Q], tl.int32) + (top * size[1] + left)
    if KH > 0:
        for i in tl.static_range(KH):
            for j in tl.static_range(KW):
                h, w = tl.minimum(top + i, bottom), tl.minimum(left + j, right)
                best, at = _compare(best, at, image, h, w, size[1], strides, mask, DENSE)
    else:
        for i in range(tl.minimum(kernel[0], size[0])):
            for j in range(tl.minimum(kernel[1], size[1])):
                h, w = tl.minimum(top + i, bottom), tl.minimum(left + j, right)
                best, at = _compare(best, at, image, h, w, size[1], strides, mask, DENSE)

    offs = r.to(tl.int64) * columns + q
    tl.store(y_ptr + offs, best.to(y_ptr.dtype.element_ty), mask=mask)
    tl.store(index_ptr + offs, at, mask=mask)


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
    batch: Pair, size: Pair, counts: Ints, kernel: Pair, stride: Pair, padding: Pair, strides: Ints, last: bool
) -> Launch:
    # Of rows, few elements per program: with more a thread has several side by side, and its neighbours read far apart.
    # H200, 32 x 64 x 112 x 112, kernels of 3 x 3: 60 us, with 1024 elements 98.
    elements, warps = (ELEMENTS, 4) if last else (256, 2)
    at = placed(*batch, counts[0] * counts[1], last, elements)
    dense = strides[3] == 1 and strides[2] == size[1]
    kh, kw = kernel if kernel[0] * kernel[1] <= UNROLLED else (0, 0)
    return Launch(
        max_pool2d_kernel, (at.programs,), at.rows, at.columns, batch[1], size, counts, kernel, stride, padding, strides,
        KH=kh, KW=kw, CHANNELS=last, DENSE=dense, INDEX=at.index, BLOCK_R=at.block_r, BLOCK_Q=at.block_q, num_warps=warps,
    )  # fmt: skip


VARIANTS = {
    "windows": Implementation(
        fn=max_pool2d, idea="both formats where they lie; channels in vectors, pixels side by side"
    )
}
