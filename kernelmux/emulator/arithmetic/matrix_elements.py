"""Element types of matrices as arrays: bits of fp16, bf16, tf32, fp8 and int8 to float32, and float32 to bits."""

from typing import Any

import numpy as np

from kernelmux.emulator.arithmetic.float8 import from_float8
from kernelmux.emulator.arithmetic.floats import from_bf16, to_bf16

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


def to_float(bits: Any, kind: str) -> Any:
    """Values of elements given as their bits (`STORAGE[kind]`), exact. tf32 cuts off what it has no room for."""
    if kind == "bf16":
        return from_bf16(bits)
    if kind == "f16":
        return bits.view(np.float16).astype(np.float32)
    if kind == "tf32":
        return (bits & TF32_MASK).view(np.float32)
    if kind in ("e4m3", "e5m2"):
        return from_float8(bits, kind)
    if kind == "s8":
        return bits.view(np.int8).astype(np.float32)
    return bits.view(np.float32) if kind == "f32" else bits.astype(np.float32)


def from_float(values: Any, kind: str) -> Any:
    """Bits of values rounded to `kind` (f32, f16, bf16), to nearest even."""
    if kind == "f32":
        return np.ascontiguousarray(values, np.float32).view(np.uint32)
    if kind == "f16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).view(np.uint16)
    return to_bf16(values)
