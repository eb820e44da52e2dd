"""8-bit floats: e4m3 (no infinities, largest 448) and e5m2 (a cut float16, largest 57344)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from kernelmux.emulator.arithmetic.floats import NAN

_MANTISSA = {"e4m3": 3, "e5m2": 2}
_BIAS = {"e4m3": 7, "e5m2": 15}


@lru_cache(maxsize=2)
def _values(kind: str) -> np.ndarray:
    """The float32 value of each of the 256 codes."""
    codes = np.arange(256)
    bits, bias = _MANTISSA[kind], _BIAS[kind]
    exponent, mantissa = codes >> bits & (1 << 7 - bits) - 1, (codes & (1 << bits) - 1) / (1 << bits)
    magnitude = np.where(
        exponent == 0, mantissa * 2.0 ** (1 - bias), (1 + mantissa) * 2.0 ** (exponent.astype(float) - bias)
    )
    low = codes & 0x7F
    if kind == "e4m3":
        magnitude[low == 0x7F] = np.nan
    else:
        magnitude[low == 0x7C], magnitude[low > 0x7C] = np.inf, np.nan
    values = np.where(codes & 0x80, -magnitude, magnitude).astype(np.float32)
    return np.where(np.isnan(values), NAN, values)


def from_float8(codes: Any, kind: str) -> Any:
    """Codes (uint8) as float32, exact."""
    return _values(kind)[codes]


def to_float8(value: Any, kind: str) -> Any:
    """float32 as codes (uint8): nearest even; too large values become the largest finite one, NaN becomes 0x7F.

    The upper half of a number, made odd where the lower half is not zero, decides.
    """
    bits = np.asarray(value, np.float32).view(np.uint32)
    upper = bits >> np.uint32(16) | ((bits & np.uint32(0xFFFF)) != 0)
    return _codes(kind)[upper]


@lru_cache(maxsize=2)
def _codes(kind: str) -> np.ndarray:
    """The code of every float32 whose lower half is zero."""
    value = (np.arange(65536, dtype=np.uint32) << np.uint32(16)).view(np.float32)
    last = 0x7E if kind == "e4m3" else 0x7B
    table = _values(kind)[: last + 1].astype(np.float64)
    magnitude = np.abs(value).astype(np.float64)
    below = np.clip(np.searchsorted(table, magnitude, side="right") - 1, 0, last)
    above = np.minimum(below + 1, last)
    middle = (table[below] + table[above]) / 2
    up = (magnitude > middle) | ((magnitude == middle) & (below & 1 == 1))
    code = np.where(up, above, below) | np.where(np.signbit(value), 0x80, 0)
    return np.where(np.isnan(value), 0x7F, code).astype(np.uint8)
