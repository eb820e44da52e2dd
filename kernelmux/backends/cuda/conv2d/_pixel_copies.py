"""Copies of images in which the copy engine (TMA) can read pixels: channels side by side, as whole vectors."""

from math import gcd

import torch

from kernelmux.backends.cuda._launch.layout import Layout, layout
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, bits_type, cdiv
from kernelmux.registry.util.cards import remembered

SOURCE = Source(__file__, "conv2d_fold.cu")
TAPS = Source(__file__, "conv2d_taps.cu")
MOST_TAPS = 25  # that registers of a thread hold for a vector of channels
VECTOR = 8  # halves of 16 bytes
SECTOR = 16  # halves of 32 bytes, which L2 reads at once
THREADS = 128
_SIGNATURE = "x* y* channels:i32 H:i32 W:i32 left:i32 columns:i32 blocks:i32 by_n:i64 by_c:i64 by_h:i64 by_w:i64"


def copied(x: torch.Tensor, left: int, columns: int, channels: int) -> torch.Tensor:
    """x [N, C, H, W] of halves as [N, H, columns, channels], dense, from `left` columns before the first one on.

    What x has nothing for is zero.
    """
    copy = x.new_empty(len(x), x.shape[2], columns, channels)
    _copying(layout(x), left, columns, channels)(x, copy)
    return copy


@remembered
def _copying(x: Layout, left: int, columns: int, channels: int) -> BoundLaunch:
    n, c, h, w = x.shape
    blocks = cdiv(columns * channels, VECTOR * THREADS)
    kernel = SOURCE.kernel(
        "conv2d_fold",
        _SIGNATURE,
        ELEMENT=bits_type(x.dtype),
        CHANNELS=channels,
        READ=_together(x, min(channels, VECTOR)),
    )
    return kernel.bind(n * h * blocks, THREADS, c, h, w, left, columns, blocks, *x.strides)


def _together(x: Layout, most: int) -> int:
    """How many channels can be read at once: all strides and the first address are multiples of so many."""
    if x.strides[1] != 1 and x.shape[1] > 1:
        return 1
    apart = (x.strides[axis] for axis in (0, 2, 3) if x.shape[axis] > 1)
    return gcd(most, x.shape[1], x.offset // x.dtype.itemsize, *apart)


def turned(x: torch.Tensor, back: bool = False) -> torch.Tensor | None:
    """[n, C, taps] as [n, taps, C], both dense, or the reverse if `back`; None for what does not come in whole vectors."""
    n, channels, taps = x.shape if not back else (x.shape[0], x.shape[2], x.shape[1])
    pitch = x.stride(1) if back else channels
    whole = channels % VECTOR == 0 and pitch % VECTOR == 0 and x.data_ptr() % 16 == 0
    if not (1 < taps <= MOST_TAPS and whole and x.stride(0) == taps * (pitch if back else channels)):
        return None
    y = x.new_empty(n, x.shape[2], x.shape[1])
    _turning(n, channels, taps, pitch, bits_type(x.dtype), back)(x, y)
    return y


@remembered
def _turning(n: int, channels: int, taps: int, pitch: int, element: str, back: bool) -> BoundLaunch:
    kernel = TAPS.kernel(
        "conv2d_taps",
        "x* y* vectors:i64 each:i32 pitch:i64",
        ELEMENT=element,
        TAPS=taps,
        BACK=int(back),
        THREADS=THREADS,
    )
    each = channels // VECTOR
    return kernel.bind(cdiv(n * each, THREADS), THREADS, n * each, each, pitch)
