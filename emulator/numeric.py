"""Floating-point arithmetic that numpy lacks: fused multiply-add with one rounding, directed rounding, bfloat16."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

F4, F8, U2, U4, U8, I8 = (np.dtype(t) for t in ("f4", "f8", "u2", "u4", "u8", "i8"))

# A float64 lies halfway between two float32 when its low 29 bits are 1 followed by zeros; for bfloat16 the low 45.
_HALFWAY = {24: (np.uint64((1 << 29) - 1), np.uint64(1 << 28)), 8: (np.uint64((1 << 45) - 1), np.uint64(1 << 44))}


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
        (lost != 0) & even & np.isfinite(near), np.where(away, bits - np.uint32(1), bits + np.uint32(1)), bits
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
    lost = _error(total, product, c)
    wrong = halfway & (lost != 0) & np.isfinite(lost)
    if not np.count_nonzero(wrong):  # mostly the sum is exact
        return total
    return np.where(wrong, np.nextafter(total, np.copysign(np.inf, lost)), total)[()]


def _error(total: Any, product: Any, addend: Any) -> Any:
    """What the sum of product and addend dropped, exactly."""
    part = total - product
    return (product - (total - part)) + (addend - part)


def fma_odd(a: Any, b: Any, c: Any) -> Any:
    """a * b + c of float32 in float64, an inexact sum made odd: rounding it to float32 in any direction is right."""
    product = a.astype(F8) * b
    total = np.asarray(product + c)
    lost = _error(total, product, np.asarray(c, F8))
    even = (total.view(U8) & np.uint64(1)) == 0
    neighbour = np.nextafter(total, np.copysign(np.inf, lost))
    return np.where((lost != 0) & np.isfinite(lost) & even, neighbour, total)[()]


def fma32(a: Any, b: Any, c: Any) -> Any:
    """float32 fused multiply-add, rounded to nearest even."""
    return fma_double(a, b, c, 24).astype(F4)


def fma64(a: Any, b: Any, c: Any) -> Any:
    """float64 fused multiply-add: error-free product and sums, the small parts added with rounding to odd."""
    high, low = _two_product(a, b)
    t_high, t_low = _two_sum(c, low)
    v_high, v_low = _two_sum(high, t_high)
    result = v_high + _add_to_odd(t_low, v_low)
    exact = (a == 0) | (b == 0) | ~(np.isfinite(a) & np.isfinite(b) & np.isfinite(c))
    safe = np.isfinite(result) & np.isfinite(low) & (np.abs(high) > 1e-280) & (np.abs(high) < 1e290)
    result = np.where(exact | ~safe, a * b + c, result)
    if np.count_nonzero(exact | safe) < np.size(result):
        return _slowly(result, ~(exact | safe), a, b, c)
    return result[()]


def _slowly(result: Any, lanes: Any, a: Any, b: Any, c: Any) -> Any:
    """Replaces the results of a few lanes, near underflow or overflow, by exact arithmetic."""
    a, b, c, lanes = np.broadcast_arrays(a, b, c, lanes)
    result = np.array(result)
    for at in np.argwhere(lanes):
        i = tuple(at)
        whole = Fraction(float(a[i])) * Fraction(float(b[i])) + Fraction(float(c[i]))
        try:
            result[i] = float(whole) if whole else result[i]
        except OverflowError:
            result[i] = np.copysign(np.inf, 1 if whole > 0 else -1)
    return result[()]


def _two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _split(a: Any) -> tuple[Any, Any]:
    scaled = a * 134217729.0  # 2^27 + 1
    high = scaled - (scaled - a)
    return high, a - high


def _two_product(a: Any, b: Any) -> tuple[Any, Any]:
    product = a * b
    (ah, al), (bh, bl) = _split(a), _split(b)
    return product, al * bl - (((product - ah * bh) - al * bh) - ah * bl)


def _add_to_odd(a: Any, b: Any) -> Any:
    total, lost = _two_sum(a, b)
    bits = np.asarray(total).view(I8)
    up = (lost > 0) == (np.asarray(total) > 0)
    moved = np.where((lost != 0) & ((bits & 1) == 0), np.where(up, bits + 1, bits - 1), bits)
    return moved.view(F8)[()]


def directed(value: Any, mode: str, dtype: Any) -> Any:
    """A float64 value rounded to `dtype` towards zero ("rz"), down ("rm") or up ("rp"); nearest even for "rn"."""
    near = value.astype(dtype)
    if mode == "rn" or dtype == F8:
        return near
    back = near.astype(F8)
    too_high = (
        (back > value)
        if mode == "rm"
        else (np.abs(back) > np.abs(value))
        if mode == "rz"
        else np.zeros(np.shape(back), bool)
    )
    too_low = back < value if mode == "rp" else np.zeros(np.shape(back), bool)
    toward = np.where(too_low, np.inf, np.where(mode == "rm", -np.inf, 0.0)).astype(dtype)
    return np.where(too_high | too_low, np.nextafter(near, toward), near).astype(dtype)[()]


def flush(value: Any) -> Any:
    """float32 subnormals as zeros of their sign (.ftz)."""
    small = np.abs(value) < np.float32(2.0**-126)
    return np.where(small, np.copysign(np.float32(0), value), value)[()] if np.any(small) else value
