"""Statistics of short rows that are held: whole vectors, and of peeled rows edges beside them.

    held(terms, valid, edge, edge_masks, n, WIDTH)   of rows of n elements: what `total` of row_statistics says of them

terms, valid: as `lanes` of row_statistics takes them, but all terms are 0 where no element is; edge: the terms of the
edges, [ROWS, BLOCK / WIDTH], or (). To a thread an edge is one more element of the first of a vector's lanes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernelmux.backends.triton._rows.row_statistics import sums_of
from kernelmux.backends.triton._rows.row_tiles import fill, spread, spread_mask
from kernelmux.backends.triton._rows.rows import rounded_product


@triton.jit
def _with_edge(terms, valid, edge, edge_masks, WIDTH: tl.constexpr):
    """Terms and masks with those of the edges, as of one more chunk."""
    if len(edge) == 0:
        return terms, valid
    else:
        wide = spread(edge, WIDTH)
        mask = spread_mask(edge_masks[0], edge[0].shape[1] * WIDTH, WIDTH)
        filled = ()
        for i in tl.static_range(len(edge)):
            filled += (tl.where(mask, wide[i], 0.0),)  # type: ignore[assignment]
        return terms + (filled,), valid + ((mask,),)  # noqa: RUF005 a tuple of tiles has no *


@triton.jit
def _lane(terms, i: tl.constexpr):
    lane = terms[0][i]
    for k in tl.static_range(1, len(terms)):
        lane += terms[k][i]
    return lane


@triton.jit
def held_sums(terms, valid, edge, edge_masks, n, WIDTH: tl.constexpr):
    terms, valid = _with_edge(terms, valid, edge, edge_masks, WIDTH)
    lanes = ()
    for i in tl.static_range(len(terms[0])):
        lanes += (_lane(terms, i),)  # type: ignore[assignment]
    return sums_of(lanes)


@triton.jit
def held_moments_and_products(terms, valid, edge, edge_masks, n, WIDTH: tl.constexpr):
    """Mean and mean square of the distances of the first term, the sum of the second, that of its products with them."""
    terms, valid = _with_edge(terms, valid, edge, edge_masks, WIDTH)
    mean = tl.sum(_lane(terms, 0), 1, keep_dims=True) / n
    both = ()
    for k in tl.static_range(len(terms)):
        distance = fill(terms[k][0] - mean, valid[k], 0.0)
        both += ((rounded_product(distance, distance), rounded_product(distance, terms[k][1])),)  # type: ignore[assignment]
    squares, total, products = sums_of((_lane(both, 0), _lane(terms, 1), _lane(both, 1)))
    return mean, squares / n, total, products
