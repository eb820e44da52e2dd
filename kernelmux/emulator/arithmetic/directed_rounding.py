"""Rounding in a wanted direction: nearest even first, then one step to the neighbour where that was the wrong side.

A mode is "rn", "rz" (towards zero), "rm" (down) or "rp" (up). What rounding to nearest `lost` is the exact number minus
the rounded one; only its sign matters.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmux.emulator.arithmetic.floats import F4, F8, least_normal, two_product, two_sum


def stepped(near: Any, lost: Any, mode: str) -> Any:
    """A nearest number moved to the neighbour that `mode` asks for."""
    if mode == "rz":
        wrong, goal = lost * np.sign(near) < 0, 0.0
    elif mode == "rm":
        wrong, goal = lost < 0, -np.inf
    else:
        wrong, goal = lost > 0, np.inf
    return np.where(wrong, np.nextafter(near, near.dtype.type(goal)), near)[()]


def directed(value: Any, mode: str, dtype: Any) -> Any:
    """A float64 value rounded to `dtype`."""
    near = value.astype(dtype)
    return near if mode == "rn" or dtype == F8 else stepped(near, value - near.astype(F8), mode)


def vanishes(value: Any, mode: str, dtype: Any = F4) -> Any:
    """Where .ftz flushes: float64 values below the normal numbers, rounded as if exponents had no lower end.

    2^-126 (1 - 2^-24) is flushed, though as a subnormal it rounds to 2^-126; 2^-126 - 2^-252 is not: seen on an H200.
    """
    scale = 2.0**64 if dtype == F4 else 2.0**12
    return np.abs(directed(value * scale, mode, dtype)) < least_normal(dtype) * dtype.type(scale)


def zero_of_sum(total: Any, a: Any, b: Any) -> Any:
    """A sum rounded down: -0 where it is zero, unless both parts are +0."""
    return np.where(total == 0, -(-a - b), total)[()]


# ---- float64: numpy's nearest result, and what it lost


def add_lost(a: Any, b: Any) -> tuple[Any, Any]:
    """a + b."""
    near, lost = two_sum(a, b)
    return near, _overflown(near, lost, np.isfinite(a) & np.isfinite(b))


def multiply_lost(a: Any, b: Any) -> tuple[Any, Any]:
    """a * b, compared with the product of the mantissas, which is in range."""
    near = a * b
    (a_part, a_power), (b_part, b_power) = np.frexp(a), np.frexp(b)
    product, rest = two_product(a_part, b_part)
    lost = (product - np.ldexp(near, -(a_power + b_power))) + rest
    return near, _overflown(near, lost, np.isfinite(a) & np.isfinite(b))


def divide_lost(a: Any, b: Any) -> tuple[Any, Any]:
    """a / b: the remainder a - near * b has the sign of what was lost, times that of b."""
    near = a / b
    (a_part, a_power), (b_part, b_power) = np.frexp(a), np.frexp(b)
    product, rest = two_product(np.ldexp(near, b_power - a_power), b_part)
    lost = ((a_part - product) - rest) * np.sign(b)
    return near, _overflown(near, lost, np.isfinite(a) & (b != 0))


def root_lost(a: Any) -> tuple[Any, Any]:
    """The square root: a - near^2 has the sign of what was lost."""
    near = np.sqrt(a)
    half = np.frexp(a)[1] >> 1
    root = np.ldexp(near, -half)
    product, rest = two_product(root, root)
    return near, _overflown(near, (np.ldexp(a, -2 * half) - product) - rest, False)


def _overflown(near: Any, lost: Any, finite: Any) -> Any:
    """An infinity lies outside of what finite operands give; other infinities are exact."""
    infinite = np.isinf(near)
    return np.where(infinite, np.where(finite, -np.sign(near), 0.0), lost) if np.any(infinite) else lost


def whole_lost(value: Any) -> tuple[Any, Any]:
    """An integer as float64."""
    if value.dtype.itemsize < 8:
        return value.astype(F8), 0.0
    kind = value.dtype.type
    return two_sum((value >> kind(32)).astype(F8) * 2.0**32, (value & kind(0xFFFFFFFF)).astype(F8))
