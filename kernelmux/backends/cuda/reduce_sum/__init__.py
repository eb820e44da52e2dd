"""Sum over one axis or over everything on CUDA: more and more threads for one sum.

H200, 8192 x 8192 fp32, rows and columns (a copy of as many bytes takes 67 us):

warp   73 1120 us  a warp per row; a thread per column
block  67  159 us  a block per row; the threads of a block share columns
split  67   74 us  long rows and columns are cut into chunks for several blocks; a second launch sums the chunks
"""

import torch

from kernelmux.backends.cuda._families.reductions import ColumnTile, row_group
from kernelmux.backends.cuda.reduce_sum._sums import SUM
from kernelmux.registry.backend import Implementation


def reduce_sum_warp(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    y, (outer, n, inner) = SUM.empty(x, axis, keepdim)
    if inner > 1:
        SUM.columns(x, y, (outer, n, inner), tile=ColumnTile(inner))
    else:
        SUM.rows(x, y, n, group=32)
    return y


def reduce_sum_block(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    y, (outer, n, inner) = SUM.empty(x, axis, keepdim)
    if inner > 1:
        SUM.columns(x, y, (outer, n, inner))
    else:
        SUM.rows(x, y, n, row_group(n * x.element_size()))
    return y


_LAYOUT = {"x": "contiguous"}
VARIANTS = {
    "warp": Implementation(
        reduce_sum_warp, "a warp per row, a thread per column", layout=_LAYOUT, arithmetic="fp32_sequential"
    ),
    "block": Implementation(reduce_sum_block, "a block per row", layout=_LAYOUT),
    "split": Implementation(SUM, "chunks of a row in several blocks, summed by a second launch", layout=_LAYOUT),
}
