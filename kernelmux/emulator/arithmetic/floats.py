"""Floating-point arithmetic that numpy lacks: fused multiply-add with one rounding, bfloat16, flushing."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

F2, F4, F8, U2, U4, U8, I8 = (np.dtype(t) for t in ("f2", "f4", "f8", "u2", "u4", "u8", "i8"))

NAN = np.uint32(0x7FFFFFFF).view(F4)  # the NaN that arithmetic gives on a GPU; as float16 it is 0x7FFF

# A float64 lies halfway between two float32 when its low 29 bits are 1 followed by zeros; for bfloat16 the low 45.
_HALFWAY = {24: (np.uint64((1 << 29) - 1), np.uint64(1 << 28)), 8: (np.uint64((1 << 45) - 1), np.uint64(1 << 44))}


def to_f16(value: Any) -> Any:
    """float32 or float64 as float16, rounded to nearest even; NaN becomes 0x7FFF."""
    result = value.astype(F2)
    nan = np.isnan(value)
    return np.where(nan, NAN.astype(F2), result)[()] if np.count_nonzero(nan) else result


def from_bf16(bits: Any) -> Any:
    """bfloat16 bits (uint16) as float32."""
    return (bits.astype(U4) << np.uint32(16)).view(F4)


def to_bf16(value: Any) -> Any:
    """float32 as bfloat16 bits, rounded to nearest even; NaN becomes 0x7FFF."""
    bits = value.view(U4)
    rounded = (bits + (np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)))) >> np.uint32(16)
    nan = np.isnan(value)
    if np.any(nan):
        rounded = np.where(nan, np.uint32(0x7FFF), rounded)
    return rounded.astype(U2)


def double_to_bf16(value: Any) -> Any:
    """float64 as bfloat16 bits with one rounding."""
    return to_bf16(round_to_odd_float(value))


def round_to_odd_float(value: Any) -> Any:
    """float64 to float32, an inexact result made odd, so that a later rounding to fewer bits is right."""
    near = value.astype(F4)
    lost = near.astype(F8) - value
    if not np.any(lost):
        return near
    bits = near.view(U4)
    even = (bits & np.uint32(1)) == 0
    away = np.abs(near.astype(F8)) > np.abs(value)  # truncate first, then set the last bit
    bits = np.where(
        (lost != 0) & even & np.isfinite(value), np.where(away, bits - np.uint32(1), bits + np.uint32(1)), bits
    )
    return bits.astype(U4).view(F4)[()]


def fma_double(a: Any, b: Any, c: Any, precision: int) -> Any:
    """a * b + c in float64 so that rounding the result to `precision` bits is right; a, b, c have at most 24 bits.

    The product is exact. The sum is rounded once; that only matters where it lies halfway between two results of the
    wanted precision, and there its last bit is moved towards what the rounding dropped.
    """
    product = a.astype(F8) * b
    total = product + c
    mask, half = _HALFWAY[precision]
    halfway = (total.view(U8) & mask) == half
    if np.count_nonzero(halfway):
        return _nudged(total, product, c, halfway)
    return total


def _nudged(total: Any, product: Any, c: Any, halfway: Any) -> Any:
    """`total`, corrected in place if it is an array: few lanes are halfway, and mostly their sum is exact."""
    if total.__class__ is not np.ndarray:
        lost = _error(total, product, c)
        return np.nextafter(total, np.copysign(np.inf, lost)) if lost and np.isfinite(lost) else total
    at = halfway.nonzero()
    near = total[at]
    lost = _error(near, _at(product, at, total), _at(c, at, total))
    if np.count_nonzero(lost):
        wrong = (lost != 0) & np.isfinite(lost)
        total[at] = np.where(wrong, np.nextafter(near, np.copysign(np.inf, lost)), near)
    return total


def _at(value: Any, at: Any, like: np.ndarray) -> Any:
    """The elements of `value`, broadcast to the shape of `like`, at some indices."""
    if np.ndim(value) == 0:
        return value
    return (value if value.shape == like.shape else np.broadcast_to(value, like.shape))[at]


def _error(total: Any, product: Any, addend: Any) -> Any:
    """What the sum of product and addend dropped, exactly."""
    part = total - product
    return (product - (total - part)) + (addend - part)


def fma_odd(a: Any, b: Any, c: Any) -> Any:
    """a * b + c of float32 in float64, an inexact sum made odd: rounding it to float32 in any direction is right."""
    product = a.astype(F8) * b
    total = np.asarray(product + c)
    return to_odd(total, _error(total, product, np.asarray(c, F8)))


def to_odd(near: Any, lost: Any) -> Any:
    """A nearest float64 made odd where it `lost` something, so that a later rounding to fewer bits is right."""
    bits = np.asarray(near).view(I8)
    up = (lost > 0) == (np.asarray(near) > 0)
    moved = np.where((np.abs(lost) > 0) & ((bits & 1) == 0), np.where(up, bits + 1, bits - 1), bits)
    return moved.view(F8)[()]


def fma32(a: Any, b: Any, c: Any) -> Any:
    """float32 fused multiply-add, rounded to nearest even."""
    return fma_double(a, b, c, 24).astype(F4)


def fma64(a: Any, b: Any, c: Any) -> Any:
    """float64 fused multiply-add, rounded to nearest even."""
    high, middle, low = _three_sum(a, b, c)
    return _where_exact(high + to_odd(*two_sum(middle, low)), None, a, b, c)[0]


def fma64_lost(a: Any, b: Any, c: Any) -> tuple[Any, Any]:
    """The same, and what rounding lost: the exact number minus the rounded one (its sign is right)."""
    high, middle, low = _three_sum(a, b, c)
    total, dropped = two_sum(middle, low)
    odd = to_odd(total, dropped)
    near, lost = two_sum(high, odd)
    return _where_exact(near, np.where(lost != 0, lost, (total - odd) + dropped), a, b, c)


def _three_sum(a: Any, b: Any, c: Any) -> tuple[Any, Any, Any]:
    """a * b + c as three numbers; the first takes the most of it."""
    product, rest = two_product(a, b)
    above, below = two_sum(c, rest)
    high, low = two_sum(product, above)
    return high, below, low


def _where_exact(near: Any, lost: Any, a: Any, b: Any, c: Any) -> tuple[Any, Any]:
    """`near` and `lost` where nothing came close to underflow or overflow, by simpler or slower means elsewhere."""
    product, finite = a * b, np.isfinite(a) & np.isfinite(b)
    simple = (a == 0) | (b == 0) | ~(finite & np.isfinite(c))
    size = np.abs(product)
    safe = np.isfinite(near) & (size > 1e-280) & (size < 1e290)
    near = np.where(simple, np.where(finite & np.isinf(c), c, product + c), near)[()]
    lost = lost if lost is None else np.where(simple, 0.0, lost)
    if np.count_nonzero(simple | safe) < np.size(near):
        return _slowly(near, lost, ~(simple | safe), a, b, c)
    return near, lost


def _slowly(near: Any, lost: Any, lanes: Any, a: Any, b: Any, c: Any) -> tuple[Any, Any]:
    """Replaces the results of a few lanes by exact arithmetic."""
    a, b, c, lanes = np.broadcast_arrays(a, b, c, lanes)
    near, lost = np.array(near), np.zeros(np.shape(near)) if lost is None else np.array(lost)
    for at in np.argwhere(lanes):
        i = tuple(at)
        whole = Fraction(float(a[i])) * Fraction(float(b[i])) + Fraction(float(c[i]))
        near[i], lost[i] = _nearest(whole)
    return near[()], lost[()]


def _nearest(whole: Fraction) -> tuple[float, int]:
    """The nearest float64, and the sign of what it lost."""
    sign = (whole > 0) - (whole < 0)
    try:
        near = float(whole) if sign >= 0 else -float(-whole)
    except OverflowError:
        return sign * np.inf, -sign
    return (near if near else np.copysign(0.0, sign)), (whole > near) - (whole < near)


def two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """a + b of float64, and what its rounding lost."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _split(a: Any) -> tuple[Any, Any]:
    scaled = a * 134217729.0  # 2^27 + 1
    high = scaled - (scaled - a)
    return high, a - high


def two_product(a: Any, b: Any) -> tuple[Any, Any]:
    """a * b of float64, and what its rounding lost."""
    product = a * b
    (ah, al), (bh, bl) = _split(a), _split(b)
    return product, al * bl - (((product - ah * bh) - al * bh) - ah * bl)


@cache
def least_normal(dtype: Any) -> Any:
    """The smallest normal number of a float type."""
    return np.finfo(dtype).smallest_normal


def flush(value: Any) -> Any:
    """Subnormal numbers as zeros of their sign (.ftz)."""
    small = np.abs(value) < least_normal(value.dtype)
    count = np.count_nonzero(small)
    if not count or count == np.count_nonzero(value == 0):  # zeros alone, which stay
        return value
    return np.where(small, np.copysign(value.dtype.type(0), value), value)[()]
