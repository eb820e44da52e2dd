"""Which tile, and which rows of it, a work of `specialised` is."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def work_of(index, tiles, K, first, left, share, SPLIT: gl.constexpr):
    """Tile, product, begin and end of K of a work: all of a tile, or a share of one of the `left` tiles from `first` on."""
    if SPLIT == 1:
        tile, batch, begin, end = index % tiles, index // tiles, 0, K
    else:
        begin = index // left * share
        tile, batch, end = first + index % left, 0, gl.minimum(begin + share, K)
    return tile, batch, begin, end


@gluon.jit
def row_in_turn(matrix, m):
    """Row m of the even rows (matrix 0) or the odd ones (1), of which there is one less. Matrices of maps have as many rows
    each as there are odd ones: the last even row is one of a third, the even rows without the first."""
    later = ((matrix == 0) & (m > 0)).to(gl.int32)
    return matrix + 2 * later, m - later
