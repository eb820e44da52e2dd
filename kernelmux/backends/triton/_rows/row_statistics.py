"""What operators need to know of a whole row: sums, the logarithm of a sum of exponentials, mean and variance.

A statistic is three jit functions:

    lanes(terms, valid, n, KEEP, WIDTH)  of some chunks, per lane. terms: per chunk a tuple of fp32 tiles; valid: per
                                         chunk the masks of the elements of the row
    merge(a, b)                          of two such
    total(state, n)                      of the row of n elements: a tuple of [ROWS, 1]

KEEP: the chunks are the whole row and stay in registers, so that lanes may use what is known of all of them. Else a
lane is a thread's vector of WIDTH elements where that saves registers.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import triton
import triton.language as tl

from kernelmux.backends.triton._rows.row_tiles import by_vector, fill, of_vectors
from kernelmux.backends.triton._rows.rows import rounded_product

LOG2E = tl.constexpr(1.4426950408889634)


class Statistic(NamedTuple):
    """Jit functions, as above; values per thread with which it was fastest: the more exchanges it needs, the more."""

    lanes: Any
    merge: Any
    total: Any
    values: int


class Pieces(NamedTuple):
    """How rows in pieces are put together: parts(found, n) makes a state of one lane of what total found of n elements.

    numbers: how many that is. empty: the first of them for no elements, where the others are 0.
    """

    parts: Any
    numbers: int
    empty: float = 0.0


@triton.jit
def _sum_lanes(terms, valid, n, KEEP: tl.constexpr, WIDTH: tl.constexpr):
    sums = ()
    for i in tl.static_range(len(terms[0])):
        lane = fill(terms[0][i], valid[0], 0.0)
        for k in tl.static_range(1, len(terms)):
            lane += fill(terms[k][i], valid[k], 0.0)
        sums += (lane,)  # type: ignore[assignment]
    return sums


@triton.jit
def _sum_merge(a, b):
    sums = ()
    for i in tl.static_range(len(a)):
        sums += (a[i] + b[i],)  # type: ignore[assignment]
    return sums


@triton.jit
def _add_pairs(a0, a1, b0, b1):
    return a0 + b0, a1 + b1


@triton.jit
def _add_triples(a0, a1, a2, b0, b1, b2):
    return a0 + b0, a1 + b1, a2 + b2


@triton.jit
def sums_of(state):
    """[ROWS, 1] for each; two or three of them in one exchange among warps."""
    if len(state) == 1:
        return (tl.sum(state[0], 1, keep_dims=True),)
    elif len(state) == 2:
        return tl.reduce(state, 1, _add_pairs, keep_dims=True)
    else:
        return tl.reduce(state, 1, _add_triples, keep_dims=True)


@triton.jit
def _sum_total(state, n):
    return sums_of(state)


@triton.jit
def finite(top):
    """A maximum to subtract: 0 where there is nothing but -inf, whose difference to itself would be NaN."""
    return tl.where(top == -float("inf"), 0.0, top)


@triton.jit
def exponential(x):
    """Subtract, then scale to base 2: one fma would round x * log2(e), which is large where x is."""
    return tl.exp2(x * LOG2E)


@triton.jit
def _exponential_lanes(terms, valid, n, KEEP: tl.constexpr, WIDTH: tl.constexpr):
    top = fill(terms[0][0], valid[0], -float("inf"))
    for k in tl.static_range(1, len(terms)):
        top = tl.maximum(top, fill(terms[k][0], valid[k], -float("inf")))
    if KEEP:
        top = tl.max(top, 1, keep_dims=True)
        base = top
    elif WIDTH > 1:  # one maximum and one sum per thread
        top = tl.max(by_vector(top, WIDTH), 2)
        base = of_vectors(finite(top), WIDTH)
    else:
        base = finite(top)
    total = fill(exponential(terms[0][0] - base), valid[0], 0.0)
    for k in tl.static_range(1, len(terms)):
        total += fill(exponential(terms[k][0] - base), valid[k], 0.0)
    if not KEEP and WIDTH > 1:
        total = tl.sum(by_vector(total, WIDTH), 2)
    return top, total


@triton.jit
def _exponential_merge(a, b):
    top = tl.maximum(a[0], b[0])
    base = finite(top)
    return top, a[1] * exponential(a[0] - base) + b[1] * exponential(b[0] - base)


@triton.jit
def _exponential_total(state, n):
    if state[0].shape[1] == 1:
        return state[0], tl.sum(state[1], 1, keep_dims=True)
    else:
        top = tl.max(state[0], 1, keep_dims=True)
        base = finite(top)
        return top, tl.sum(rounded_product(state[1], exponential(state[0] - base)), 1, keep_dims=True)


@triton.jit
def _ones(x, valid):
    return fill(tl.where(x == x, 1.0, 1.0), valid, 0.0)  # a tile of the layout of x, whichever that is


@triton.jit
def _squares(x, mean, valid):
    """Of the distances from the mean."""
    distance = fill(x - mean, valid, 0.0)
    return rounded_product(distance, distance)


@triton.jit
def _moment_lanes(terms, valid, n, KEEP: tl.constexpr, WIDTH: tl.constexpr):
    """(mean, squares) where that is the row's mean, else (count, mean, squares) of each lane."""
    total = fill(terms[0][0], valid[0], 0.0)
    count = _ones(terms[0][0], valid[0])
    for k in tl.static_range(1, len(terms)):
        total += fill(terms[k][0], valid[k], 0.0)
        count += _ones(terms[k][0], valid[k])
    if KEEP:
        mean = tl.sum(total, 1, keep_dims=True) / n
        about = mean
    elif WIDTH > 1:
        count = tl.sum(by_vector(count, WIDTH), 2)
        mean = tl.sum(by_vector(total, WIDTH), 2) / tl.maximum(count, 1.0)
        about = of_vectors(mean, WIDTH)
    else:
        mean = total / tl.maximum(count, 1.0)
        about = mean
    squares = _squares(terms[0][0], about, valid[0])
    for k in tl.static_range(1, len(terms)):
        squares += _squares(terms[k][0], about, valid[k])
    if KEEP:
        return mean, squares
    elif WIDTH > 1:
        return count, mean, tl.sum(by_vector(squares, WIDTH), 2)
    else:
        return count, mean, squares


@triton.jit
def _moment_merge(a, b):
    count = a[0] + b[0]
    share = b[0] / tl.maximum(count, 1.0)
    distance = b[1] - a[1]
    return count, a[1] + distance * share, a[2] + b[2] + distance * distance * (a[0] * share)


@triton.jit
def _moment_total(state, n):
    """Mean, and mean square of the distances from it."""
    if len(state) == 2:
        return state[0], tl.sum(state[1], 1, keep_dims=True) / n
    else:
        mean = tl.sum(rounded_product(state[0], state[1]), 1, keep_dims=True) / n
        distance = state[1] - mean
        return mean, tl.sum(state[2] + rounded_product(state[0] * distance, distance), 1, keep_dims=True) / n


@triton.jit
def _products(x, mean, y, valid):
    """Distances from the mean times another tile."""
    return rounded_product(fill(x - mean, valid, 0.0), y)


@triton.jit
def _moment_product_lanes(terms, valid, n, KEEP: tl.constexpr, WIDTH: tl.constexpr):
    """The moments of the first tile, the sum of the second, and that of its products with the distances of the first."""
    moments = _moment_lanes(terms, valid, n, KEEP, 0)
    about = moments[0] if KEEP else moments[1]
    total = fill(terms[0][1], valid[0], 0.0)
    products = _products(terms[0][0], about, terms[0][1], valid[0])
    for k in tl.static_range(1, len(terms)):
        total += fill(terms[k][1], valid[k], 0.0)
        products += _products(terms[k][0], about, terms[k][1], valid[k])
    return moments + (total, products)  # noqa: RUF005 a tuple of tiles has no *


@triton.jit
def _moment_product_merge(a, b):
    count, mean, squares = _moment_merge(a, b)
    products = a[4] + (a[1] - mean) * a[3] + b[4] + (b[1] - mean) * b[3]
    return count, mean, squares, a[3] + b[3], products


@triton.jit
def _moment_product_total(state, n):
    """Mean, mean square of the distances from it, the sum of the second tile, and of its products with the distances."""
    if len(state) == 4:
        squares, total, products = sums_of(state[1:])
        return state[0], squares / n, total, products
    else:
        mean, variance = _moment_total(state[:3], n)
        total, products = sums_of((state[3], state[4] + rounded_product(state[1] - mean, state[3])))
        return mean, variance, total, products


@triton.jit
def _same(found, n):
    return found


@triton.jit
def _moment_parts(found, n):
    return tl.zeros_like(found[0]) + n, found[0], found[1] * n


@triton.jit
def _moment_product_parts(found, n):
    count = tl.zeros_like(found[0]) + n
    return count, found[0], found[1] * n, found[2], found[3]


SUMS = Statistic(_sum_lanes, _sum_merge, _sum_total, 32)
EXPONENTIALS = Statistic(_exponential_lanes, _exponential_merge, _exponential_total, 24)
MOMENTS = Statistic(_moment_lanes, _moment_merge, _moment_total, 40)
MOMENTS_AND_PRODUCTS = Statistic(_moment_product_lanes, _moment_product_merge, _moment_product_total, 40)
OF_ONE_SUM, OF_TWO_SUMS, OF_EXPONENTIALS = Pieces(_same, 1), Pieces(_same, 2), Pieces(_same, 2, -math.inf)
OF_MOMENTS, OF_MOMENTS_AND_PRODUCTS = Pieces(_moment_parts, 3), Pieces(_moment_product_parts, 5)
