"""Element types of matrices as arrays: bits of fp16, bf16, tf32, fp8 and int8 to float32, and float32 to bits."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bits = NDArray[Any]

# Storage of each type: an unsigned integer as wide as its element. tf32 lies in the upper 19 bits of 32.
STORAGE: dict[str, type[np.unsignedinteger[Any]]] = {
    "f16": np.uint16,
    "bf16": np.uint16,
    "tf32": np.uint32,
    "f32": np.uint32,
    "e4m3": np.uint8,
    "e5m2": np.uint8,
    "s8": np.uint8,
    "u8": np.uint8,
}
TF32_MASK = np.uint32(0xFFFFE000)


def _fp8_table(exponent_bits: int, has_infinity: bool) -> Floats:
    """Value of each of the 256 codes of an 8-bit float."""
    codes = np.arange(256)
    mantissa_bits = 7 - exponent_bits
    bias = (1 << (exponent_bits - 1)) - 1
    exponent = codes >> mantissa_bits & ((1 << exponent_bits) - 1)
    mantissa = (codes & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    magnitude = np.where(exponent == 0, mantissa * 2.0 ** (1 - bias), (1 + mantissa) * 2.0 ** (exponent - bias))
    if has_infinity:  # e5m2 is a cut fp16
        magnitude[exponent == (1 << exponent_bits) - 1] = np.nan
        magnitude[(codes & 0x7F) == 0x7C] = np.inf
    else:  # e4m3 spends one code per sign on NaN
        magnitude[(codes & 0x7F) == 0x7F] = np.nan
    return np.where(codes & 0x80, -magnitude, magnitude).astype(np.float32)


_FP8 = {"e4m3": _fp8_table(4, has_infinity=False), "e5m2": _fp8_table(5, has_infinity=True)}


def to_float(bits: Bits, kind: str) -> Floats:
    """Values of elements given as their bits (`STORAGE[kind]`), exact. tf32 cuts off what it has no room for."""
    if kind == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if kind == "f16":
        return bits.view(np.float16).astype(np.float32)
    if kind == "tf32":
        return (bits & TF32_MASK).view(np.float32)
    if kind in _FP8:
        return _FP8[kind][bits]
    if kind == "s8":
        return bits.view(np.int8).astype(np.float32)
    return bits.view(np.float32) if kind == "f32" else bits.astype(np.float32)


def from_float(values: Floats, kind: str) -> Bits:
    """Bits of values rounded to `kind` (f32, f16, bf16), to nearest even."""
    if kind == "f32":
        return np.ascontiguousarray(values, np.float32).view(np.uint32)
    if kind == "f16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).view(np.uint16)
    return _to_bf16(values)


def _to_bf16(values: Floats) -> Bits:
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), np.uint32(0x7FFF), rounded).astype(np.uint16)
