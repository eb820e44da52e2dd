"""How the copy engine (TMA) sees images and kernels, and how windows walk over them."""

from __future__ import annotations

import torch
from triton.experimental.gluon import language as gl

from kernelmux.backends.triton._launch.launch import Ints, Map, cdiv
from kernelmux.backends.triton.conv2d._problem import VECTOR, ConvolutionProblem, Images


def turned(p: ConvolutionProblem) -> bool:
    """Whether the places of x, which are one row for each image, lie side by side."""
    return p.x.strides[3] == 1 and p.x.strides[1] != 1


def map_of_x(p: ConvolutionProblem, box: Ints, block_k: int) -> Map:
    """Of the images that `_specialised` reads in such boxes."""
    if turned(p):
        (n, c, _, w), (by_n, by_c, *_), block = p.x.shape, p.x.strides, (1, block_k, box[2])
        return Map((n, c, w), (by_n if n > 1 else w, by_c, 1), block, layout_of(block, p.dtype))
    return phases_of(p, (*box, block_k)) if strided(p) else map_of(p.x, (*box, block_k), p.dtype)


def strided(p: ConvolutionProblem) -> bool:
    """Whether the places have any stride but 1."""
    return any(w.stride > 1 for w in p.windows)


def walk(p: ConvolutionProblem, transposed: bool = False) -> Ints:
    """Of rows and columns: first, step, by how many strides the first place lies above them (lift), and stride."""
    if transposed:
        each = [(w.padding, -w.dilation, 0, 1) for w in p.windows]
    else:
        lifts = [cdiv(w.padding, w.stride) for w in p.windows]
        each = [(n * w.stride - w.padding, w.dilation, n, w.stride) for n, w in zip(lifts, p.windows, strict=True)]
    return tuple(n for pair in zip(*each, strict=True) for n in pair)


def phases_of(
    p: ConvolutionProblem, block: Ints, rows: tuple[int, int] | None = None, columns: tuple[int, int] | None = None
) -> Map:
    """Images as [N H/stride stride W/stride stride*C]. rows, columns: one phase alone, so many of it."""
    (n, c, h, w), (along_n, _, along_h, along_w) = p.x.shape, p.x.strides
    down, across = (window.stride for window in p.windows)
    of_rows = (h // down, down) if rows is None else (rows[1], rows[0] + 1)
    of_columns = (w // across, across * c) if columns is None else (columns[1], (columns[0] + 1) * c)
    shape = (n, *of_rows, *of_columns)
    strides = (along_n, down * along_h, along_h, across * along_w)
    box = (*block[:2], 1, *block[2:])
    apart = (s if length > 1 else VECTOR for s, length in zip(strides, shape, strict=False))
    return Map(shape, (*apart, 1), box, layout_of(box, p.dtype))


def map_of(
    x: Images, block: Ints, dtype: torch.dtype, turned: bool = False, spans: tuple[int, int] | None = None
) -> Map:
    """Images or kernels as [N H W C]; turned: as [C H W N]. spans: of so many rows and columns alone."""
    axes = (1, 2, 3, 0) if turned else (0, 2, 3, 1)
    shape = (*x.shape[:2], *(spans or x.shape[2:]))
    strides = (x.strides[a] if x.shape[a] > 1 or a == axes[3] else VECTOR for a in axes)
    return Map([shape[a] for a in axes], list(strides), block, layout_of(block, dtype))


def layout_of(block: Ints, dtype: torch.dtype) -> gl.NVMMASharedLayout:
    """How a block lies in shared memory."""
    element = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16, torch.float32: gl.float32}[dtype]
    return gl.NVMMASharedLayout.get_default_for(list(block), element)
