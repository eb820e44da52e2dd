"""Images and weights of fp32 as planes of bf16 (`_families/planes.py`), channels side by side, for copies by im2col."""

import torch

from kernelmux.backends.cuda._families import planes
from kernelmux.backends.cuda._families.planes import plane_length, words
from kernelmux.backends.cuda._launch.layout import Layout, layout
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, card, cdiv
from kernelmux.registry.util.batch_strides import merged
from kernelmux.registry.util.cards import Card, remembered

SOURCE = Source(__file__, "conv2d_planes.cu")
PIXELS = 32  # of a tile that is turned, at most
_SIGNATURE = "x* y* flags* tiles:i32 channels:i32 plane:i32 pixels:i32 columns:i32 by_n:i64 by_c:i64 by_h:i64 by_w:i64"


def split(x: torch.Tensor, flags: torch.Tensor, index: int) -> torch.Tensor:
    """x [N, C, H, W] as bf16 [N, H, W, 3 * plane_length(C)]; flags, index: as those of `planes.split`."""
    n, c, h, w = x.shape
    if _side_by_side(x):
        return planes.split(x.permute(0, 2, 3, 1), flags, index)
    here = card(x)
    y = x.new_empty(n, h, w, 3 * plane_length(c), dtype=torch.bfloat16)
    _turning(layout(x), here)(x, y, flags[index * words(here) : (index + 1) * words(here)])
    return y


def _side_by_side(x: torch.Tensor) -> bool:
    """Whether the channels are, and no axis is expanded: each pixel of the planes has a place of its own."""
    spread = all(stride > 0 for n, stride in zip(x.shape, x.stride(), strict=True) if n > 1)
    return (x.stride(1) == 1 or x.shape[1] == 1) and spread


def of_planes(x: Layout) -> Layout:
    """How the planes of x lie, as images of three times as many channels."""
    n, c, h, w = x.shape
    pixel = 3 * plane_length(c)
    return Layout((n, pixel, h, w), (h * w * pixel, 1, w * pixel, pixel), torch.bfloat16, 0)


@remembered
def _turning(x: Layout, card: Card) -> BoundLaunch:
    (n, c, h, w), (by_n, by_c, by_h, by_w) = x.shape, x.strides
    row = merged([(h, by_h), (w, by_w)])
    if len(row) <= 1:  # all pixels of an image are equally far apart
        columns, by_w = h * w, row[0][1] if row else 0
    else:
        columns = w
    pixels, plane = h * w, plane_length(c)
    some = min(pixels, PIXELS)
    tiles = n * cdiv(pixels, some) * (plane // planes.LINE)
    kernel = SOURCE.kernel("conv2d_planes", _SIGNATURE, PIXELS=some)
    return kernel.bind(words(card), planes.THREADS, tiles, c, plane, pixels, columns, by_n, by_c, by_h, by_w)
