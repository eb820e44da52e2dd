"""Kernels of single elements with a stride: what they do not meet of the images is not read where these are copied.

Of a stride of 2 that is three pixels of four. The pixels that are met are images of their own, with a stride of 1.
"""

from __future__ import annotations

from math import gcd

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch.launch import Ints, Launch, cdiv, plan
from kernelmux.backends.triton._rows.rows import next_power
from kernelmux.backends.triton.conv2d._problem import VECTOR, Images
from kernelmux.registry.spec.sliding_windows import Window

Windows = tuple[Window, Window]
SINGLES: Windows = (Window(1, 1, 0), Window(1, 1, 0))
PLACES, NUMBERS = 128, 4096  # of a program: places of a channel at most, and all its elements


def spaced(over: Windows) -> bool:
    """Whether windows are single elements that do not meet all pixels, and nothing else."""
    return any(w.stride > 1 for w in over) and all(w.kernel == 1 and not w.padding for w in over)


def met(x: torch.Tensor, over: Windows) -> torch.Tensor:
    """The pixels that such windows meet, where they lie: a place of SINGLES each."""
    return x[:, :, :: over[0].stride, :: over[1].stride]


@triton.jit
def conv2d_spaced_kernel(
    y_ptr, x_ptr, channels, places, columns, plane, by_h, by_w,
    UNIT: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """Contiguous y [channels places] from x, whose channels lie `plane` apart, rows of places by_h and columns by_w. UNIT:
    places come in units of so many, so that the compiler sees which vectors there are."""
    places *= UNIT
    tiles_p = tl.cdiv(places, BLOCK_P)
    c = ((tl.program_id(0) // tiles_p).to(tl.int64) * BLOCK_C + tl.arange(0, BLOCK_C))[:, None]
    p = (tl.program_id(0) % tiles_p * BLOCK_P + tl.arange(0, BLOCK_P))[None, :]
    at = (p // columns).to(tl.int64) * by_h + (p % columns).to(tl.int64) * by_w
    inside = (c < channels) & (p < places)
    tl.store(y_ptr + (c * places + p), tl.load(x_ptr + (c * plane + at), mask=inside), mask=inside)


@plan
def _gathering(x: Images) -> Launch:
    """The launch, of contiguous images and of planes."""
    (n, c, h, w), (_, plane, by_h, by_w) = x.shape, x.strides
    block_p = min(PLACES, next_power(h * w))
    block_c = NUMBERS // block_p
    unit = gcd(h * w, VECTOR)
    return Launch(
        conv2d_spaced_kernel, (cdiv(n * c, block_c) * cdiv(h * w, block_p),), n * c, h * w // unit, w, plane, by_h, by_w,
        UNIT=unit, BLOCK_C=block_c, BLOCK_P=block_p, num_warps=8,
    )  # fmt: skip


def gathered(x: torch.Tensor, lie: Images) -> torch.Tensor:
    """Images that lie as `planes_of` says as contiguous ones."""
    shape: Ints = tuple(x.shape)
    y = torch.empty(shape, dtype=x.dtype, device=x.device)
    _gathering(lie)(y, x)
    return y
