"""The instructions made of the units of `mufu_units`: what an H200 executes for PTX, as its assembler lists it.

The units flush subnormal numbers. Instructions without .ftz scale such an argument by a power of 2 and the result back;
quotients are products with a reciprocal. Names with `_ftz` are forms of their own only where the unit alone is not enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernelmux.emulator.arithmetic import mufu_units as units
from kernelmux.emulator.arithmetic.directed_rounding import vanishes
from kernelmux.emulator.arithmetic.floats import NAN, flush, fma64
from kernelmux.emulator.arithmetic.mufu_tables import RECIPROCAL, RECIPROCAL_ROOT
from kernelmux.emulator.errors import Unsupported

F4, F8, I4, I8 = (np.dtype(t) for t in ("f4", "f8", "i4", "i8"))
LEAST, MOST = F4.type(2.0**-126), F4.type(2.0**126)
UP = F4.type(2.0**24)
HIGH = 32  # bits below the upper half of a float64


def _factor(x: Any, large: bool) -> Any:
    """What brings subnormal numbers (and, if asked, those above 2^126) where the reciprocal is a normal number; or 1."""
    size = np.abs(x)
    small, big = size < LEAST, size > (MOST if large else F4.type(np.inf))
    if not np.any(small | big):
        return F4.type(1)
    return np.where(small, UP, np.where(big, F4.type(0.25), F4.type(1)))[()]


def rcp(x: Any) -> Any:
    """rcp.approx.f32."""
    factor = _factor(x, large=True)
    return (units.rcp(x * factor) * factor)[()]


def _scaled(unit: Callable[[Any], Any], back: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`unit` that multiplies subnormal arguments by 2^24 and repairs their results with `back`."""

    def run(x: Any) -> Any:
        small = np.abs(x) < LEAST
        if not np.any(small):
            return unit(x)
        result = unit(np.where(small, x * UP, x))
        return np.where(small, back(result), result)[()]

    return run


sqrt = _scaled(units.sqrt, lambda y: y * F4.type(2.0**-12))  # sqrt.approx.f32
rsqrt = _scaled(units.rsqrt, lambda y: y * F4.type(2.0**12))  # rsqrt.approx.f32
lg2 = _scaled(units.lg2, lambda y: y - F4.type(24))  # lg2.approx.f32


def ex2(x: Any) -> Any:
    """ex2.approx.f32: below -126 the square of 2^(x / 2)."""
    small = x < F4.type(-126)
    if not np.any(small):
        return units.ex2(x)
    result = units.ex2(np.where(small, x * F4.type(0.5), x))
    return np.where(small, result * result, result)[()]


def divide(a: Any, b: Any) -> Any:
    """div.approx.f32."""
    factor = _factor(b, large=False)
    return _quiet(units.rcp(b * factor) * (a * factor))


def divide_full(a: Any, b: Any) -> Any:
    """div.full.f32."""
    factor = _factor(b, large=True)
    return _quiet(units.rcp(b * factor) * (a * factor))


def divide_ftz(a: Any, b: Any) -> Any:
    """div.approx.ftz.f32."""
    return _quiet(_product_ftz(a, units.rcp(b)))


def divide_full_ftz(a: Any, b: Any) -> Any:
    """div.full.ftz.f32."""
    factor = np.where(np.abs(b) > MOST, F4.type(0.25), F4.type(1))[()]
    return _quiet(_product_ftz(_product_ftz(a, factor), units.rcp(b * factor)))


def _quiet(value: Any) -> Any:
    """With the NaN of a GPU's arithmetic."""
    return np.where(np.isnan(value), NAN, value)[()]


def _product_ftz(a: Any, b: Any) -> Any:
    """mul.ftz.f32."""
    a, b = flush(a), flush(b)
    product = a * b
    small = (np.abs(product) <= LEAST) & (product != 0)
    if not np.any(small):
        return product
    small = small & vanishes(np.asarray(a, F8) * b, "rn")
    return np.where(small, np.copysign(F4.type(0), product), product)[()]


def shortened(unit: Callable[[Any], Any], brain: bool) -> Callable[[Any], Any]:
    """ex2 and tanh .f16 and .bf16: the unit's result cut to the type's digits, as float32 values of the type."""
    return lambda x: _cut_to_bf16(unit(x)) if brain else _cut_to_f16(unit(x))


def _cut_to_bf16(value: Any) -> Any:
    bits = np.asarray(value).view(I4)
    return np.where(np.isnan(value), value, (bits & I4.type(-(1 << 16))).view(F4))[()]


def _cut_to_f16(value: Any) -> Any:
    """Subnormal results of the type have fewer digits."""
    bits = np.asarray(value).view(I4)
    size = np.abs(value)
    result = np.where(np.isfinite(value), (bits & I4.type(-(1 << 13))).view(F4), value)
    unit = F4.type(2.0**24)
    result = np.where(size < F4.type(2.0**-14), np.trunc(value * unit) / unit, result)
    return np.where(size >= F4.type(2.0**16), np.copysign(F4.type(np.inf), value), result)[()]


def rcp64(x: Any) -> Any:
    """rcp.approx.ftz.f64: of the upper half of x, to 20 bits after the point."""
    _, size, sign = _upper(x)
    total = units.interpolate(RECIPROCAL, size >> 13 & 127, (size & 0x1FFF) << 4).astype(I4) >> 3
    total += 2044 - (size >> 20) << 20
    none = (total < 1 << 20) | (size == 0x7FF << 20)
    return _joined(total | sign, (none, sign), (size < 1 << 20, sign | 0x7FF << 20), (size > 0x7FF << 20, units.NAN))


def rsqrt64_ftz(x: Any) -> Any:
    """rsqrt.approx.ftz.f64: of the upper half of x, to 20 bits after the point."""
    high, size, sign = _upper(x)
    total = units.interpolate(RECIPROCAL_ROOT, size >> 14 & 127, (size & 0x3FFF) << 3).astype(I4)
    total += size & 0x1FFFFF == 1 << 20
    total = (total >> 3) + (1021 - ((size >> 20) - 1023 >> 1) << 20)
    return _joined(
        total,
        (size == 0x7FF << 20, 0),
        (high < 0, units.NAN),
        (size < 1 << 20, sign | 0x7FF << 20),
        (size > 0x7FF << 20, units.NAN),
    )


def _upper(x: Any) -> tuple[Any, Any, Any]:
    """int32: the upper half of float64 values, its size, and its sign."""
    high = (np.asarray(x).view(I8) >> HIGH).astype(I4)[()]
    return high, high & 0x7FFFFFFF, high & units.SIGN


def _joined(high: Any, *special: tuple[Any, Any]) -> Any:
    bits = np.asarray(units.chosen(high, *special)).view(I4)
    return (bits.astype(I8) << HIGH).view(F8)[()]


def rsqrt64(x: Any) -> Any:
    """rsqrt.approx.f64: the unit's result and one step of Halley's method."""
    x = np.asarray(x)[()]
    small = np.abs(x) < 2.0**-1022
    scaled = np.where(small, x * 2.0**54, x)[()]
    start = rsqrt64_ftz(scaled)
    error = fma64(scaled, -(start * start), F8.type(1))
    result = fma64(fma64(error, F8.type(0.375), F8.type(0.5)), start * error, start)
    result = np.where(small, result * 2.0**27, result)
    result = np.where(x < 0, -np.nan, np.where(x == np.inf, 0.0, result))
    return np.where(x == 0, np.copysign(np.inf, x), np.where(np.isnan(x), x + x, result))[()]


# By name and type: without .ftz, with it.
_FORMS: dict[tuple[str, str], tuple[Callable[..., Any], Callable[..., Any]]] = {
    ("rcp", "f32"): (rcp, units.rcp),
    ("sqrt", "f32"): (sqrt, units.sqrt),
    ("rsqrt", "f32"): (rsqrt, units.rsqrt),
    ("ex2", "f32"): (ex2, units.ex2),
    ("lg2", "f32"): (lg2, units.lg2),
    ("sin", "f32"): (units.sin, units.sin),
    ("cos", "f32"): (units.cos, units.cos),
    ("tanh", "f32"): (units.tanh, units.tanh),
    ("div", "f32"): (divide, divide_ftz),
    ("div.full", "f32"): (divide_full, divide_full_ftz),
    ("rcp", "f64"): (rcp64, rcp64),
    ("rsqrt", "f64"): (rsqrt64, rsqrt64_ftz),
}


def approximation(name: str, kind: str, full: bool, flushing: bool) -> Callable[..., Any]:
    """What `name.approx{.ftz}.kind` (full: `name.full`) computes; Unsupported if PTX has no such instruction."""
    forms = _FORMS.get((f"{name}.full" if full else name, kind))
    if forms is None:
        raise Unsupported(f"{name} of {kind} has no approximate form")
    return forms[flushing]
