"""Sums of products as the tensor cores of an H200 form them, bit by bit.

One instruction adds all its products and the accumulator at once. Each term is cut to a multiple of 2^(e - fraction),
where e is the largest exponent among them; the cut terms are added exactly; the sum is cut to `digits` digits. The
exponent of a product is that of its factors added, so that 1.5 * 1.5 counts as 1, and subnormal numbers have the smallest
exponent of their type. The rule and its constants were found by comparing with an H200 (`validation/`), where not one bit
of two million results differs; they agree with what Fasi, Higham, Mikaitis and Pranesh (2021) saw of older tensor cores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
F2, F4, F8, I2, I4, I8, U4, U8 = (np.dtype(t) for t in ("f2", "f4", "f8", "i2", "i4", "i8", "u4", "u8"))
NOTHING = I2.type(-2000)  # exponent of zero
LEAST = {"f16": -14, "bf16": -126, "tf32": -126, "f32": -126, "e4m3": -6, "e5m2": -14}
NAN = np.uint32(0x7FFFFFFF)
SLAB = 1 << 18  # terms at a time, so that they stay in the cache
PARTIAL = 8  # terms below 2^28 that int32 can add
DENSE = 0.75  # of the terms: where fewer are not 0, those alone are added


@dataclass(frozen=True)
class FusedDotRule:
    """How one kind of tensor core instruction adds: see above."""

    fraction: int
    digits: int


FULL, FP8 = FusedDotRule(25, 24), FusedDotRule(13, 14)


def fused_dot(
    a: Array, b: Array, c: Array, kinds: tuple[str, str], rule: FusedDotRule = FULL, half: bool = False
) -> Array:
    """`a [G, M, K] @ b [G, K, N] + c [G, M, N]`, all float32 values of the types `kinds`; float16 if `half`."""
    bad = not_finite(a) or not_finite(b) or not_finite(c)
    finite = (np.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0) for x in (a, b, c)) if bad else (a, b, c)
    left, right, sums = finite
    if (box := _occupied(left, right)) is None:
        result = _rounded(left, right, sums, kinds, rule, half)
    else:
        g, m, k, n = box
        result = _accumulator_alone(sums, rule, half)
        if g.size * m.size * k.size * n.size:
            place = np.ix_(g, m, n)
            part = left[np.ix_(g, m, k)], right[np.ix_(g, k, n)], sums[place]
            result[place] = _rounded(*part, kinds, rule, half)
    return _with_special(result, a, b, c) if bad else result


def _occupied(a: Array, b: Array) -> tuple[Array, Array, Array, Array] | None:
    """Products, rows, terms and columns (g, m, k, n) outside of which a factor is 0; None where that is most of them.

    A term of 0 changes no sum and no exponent. Tiles that stand over the edge of a matrix are full of them: of the terms
    of matmul's `cuda/wgmma` in tier ci 92% are outside, of `triton/from_registers` 68%.
    """
    used_a, used_b = a != 0, b != 0
    rows, columns = used_a.any(2), used_b.any(1)
    g = np.flatnonzero(rows.any(1) & columns.any(1))
    m, n = np.flatnonzero(rows[g].any(0)), np.flatnonzero(columns[g].any(0))
    k = np.flatnonzero(used_a[g].any((0, 1)) & used_b[g].any((0, 2)))
    inside = len(g) * len(m) * len(k) * len(n)
    return None if inside > DENSE * a.size * b.shape[2] else (g, m, k, n)


def _accumulator_alone(sums: Array, rule: FusedDotRule, half: bool) -> Array:
    """`fused_dot` of a finite accumulator and no products: the same where it keeps all digits, but for -0."""
    if rule.digits < FULL.digits:
        terms = np.zeros((*sums.shape[:2], 0), F4), np.zeros((sums.shape[0], 0, sums.shape[2]), F4)
        return _rounded(*terms, sums, ("f32", "f32"), rule, half)
    result: Array = sums + F4.type(0)
    return result.astype(F2) if half else result


def _rounded(a: Array, b: Array, sums: Array, kinds: tuple[str, str], rule: FusedDotRule, half: bool) -> Array:
    """`fused_dot` of finite numbers."""
    left, right = a.transpose(2, 0, 1)[..., None], b.transpose(1, 0, 2)[:, :, None, :]  # [K, G, M, 1], [K, G, 1, N]
    largest = _largest(_exponents(left, kinds[0]), _exponents(right, kinds[1]), _exponents(sums, "f32"))
    exact = _aligned_sum(left, right, sums, largest, rule.fraction)
    return exact.astype(F2) if half else _cut(exact, rule.digits)


def not_finite(x: Array) -> bool:
    """Whether any element is infinite or no number."""
    return not np.isfinite(x).all()


def _exponents(x: Array, kind: str) -> Array:
    """int16: floor(log2(|x|)), not below that of the smallest normal number of the type; `NOTHING` for zeros."""
    fields: Array = (np.ascontiguousarray(x).view(U4) >> np.uint32(23)).astype(I2) & I2.type(0xFF)
    exponents: Array = np.maximum(fields - I2.type(127), I2.type(LEAST[kind]))
    exponents[x == 0] = NOTHING
    return exponents


def _largest(a: Array, b: Array, c: Array) -> Array:
    """The largest exponent of the terms of each sum, `[G, M, N]`; 0 where all are zero."""
    largest, parts = c, _slabs(len(a), c.size)
    both = np.empty((_longest(parts), *c.shape), c.dtype)
    for part in parts:
        found = np.add(a[part], b[part], out=both[: part.stop - part.start])
        np.maximum(largest, found[0] if len(found) == 1 else np.maximum.reduce(found, axis=0), out=largest)
    largest[largest < NOTHING // 2] = 0
    return largest


def _slabs(terms: int, sums: int) -> list[slice]:
    """As many terms at a time as stay in the cache, and as int32 can add."""
    slab = min(PARTIAL, max(1, SLAB // max(sums, 1)))
    return [slice(k, min(k + slab, terms)) for k in range(0, terms, slab)]


def _longest(parts: list[slice]) -> int:
    """The terms of the longest slab."""
    return max((part.stop - part.start for part in parts), default=0)


def _aligned_sum(a: Array, b: Array, c: Array, largest: Array, fraction: int) -> Array:
    """The sum of the terms in units of 2^(largest - fraction), each without its broken part; as float64 values.

    float32 holds a product (at most 22 digits) and its scaled value exactly, as long as the exponents are moderate.
    """
    moderate = int(largest.min()) > -90 and int(largest.max()) < 120
    real, whole = (F4, I4) if moderate else (F8, I8)
    unit = np.ldexp(real.type(1), fraction - largest.astype(I4))
    total = (c.astype(real) * unit).astype(I8)
    a, b, parts = a.astype(real), b.astype(real), _slabs(len(a), total.size)
    terms, cut = (np.empty((_longest(parts), *total.shape), kind) for kind in (real, whole))  # memory that stays cached
    for part in parts:
        count = part.stop - part.start
        found = np.multiply(a[part], b[part], out=terms[:count])
        np.multiply(found, unit, out=found)
        np.copyto(cut[:count], found, casting="unsafe")  # the conversion cuts towards zero
        total += cut[0] if count == 1 else np.add.reduce(cut[:count], axis=0, dtype=whole)
    result: Array = np.ldexp(total.astype(F8), largest.astype(I4) - fraction)
    return result


def _cut(exact: Array, digits: int) -> Array:
    """float64 to float32 with at most `digits` digits, towards zero; what is too large becomes infinite."""
    cut = (exact.view(U8) & np.uint64(~((1 << 53 - digits) - 1) & (1 << 64) - 1)).view(F8)
    result = cut.astype(F4)
    away = np.abs(result) > np.abs(cut)  # subnormal results, which the conversion rounds
    return np.where(away & np.isfinite(result), np.nextafter(result, F4.type(0)), result)


def _with_special(result: Array, a: Array, b: Array, c: Array) -> Array:
    """Infinities and NaN where a term is one; all NaN are the same."""
    plain = np.matmul(a.astype(F8), b.astype(F8)) + c
    nan = np.uint16(0x7FFF).view(F2) if result.dtype == F2 else NAN.view(F4)
    return np.where(np.isfinite(plain), result, np.where(np.isnan(plain), nan, plain)).astype(result.dtype)
