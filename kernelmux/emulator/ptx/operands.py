"""The operands of PTX instructions, as small immutable nodes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Register:
    """A declared register; type is its PTX type ("b32", "pred", …); negated for `!%p1`."""

    name: str
    type: str
    negated: bool = False


@dataclass(frozen=True)
class Special:
    """A read-only register of the machine: `%tid.x`, `%laneid`, …"""

    name: str


@dataclass(frozen=True)
class Immediate:
    """A number as written: `5`, `-0x10`, `0f3F800000`."""

    text: str

    def value(self, dtype: Any) -> Any:
        """The number as a numpy scalar of `dtype`; integers wrap to its width."""
        dtype = np.dtype(dtype)
        if self.text[:2] in ("0f", "0F", "0d", "0D"):
            return self._float_bits(dtype)
        number = self.integer if "." not in self.text else float(self.text)
        if dtype.kind == "b":
            return np.bool_(number)
        if dtype.kind == "f":
            return dtype.type(number)
        bits = 8 * dtype.itemsize
        return np.array(int(number) & ((1 << bits) - 1), f"u{dtype.itemsize}").view(dtype)[()]

    def _float_bits(self, dtype: np.dtype[Any]) -> Any:
        wide = self.text[1] in "dD"
        bits = np.array(int(self.text[2:], 16), np.uint64 if wide else np.uint32)
        if dtype.kind == "f":
            return dtype.type(bits.view(np.float64 if wide else np.float32)[()])
        return bits.astype(f"u{dtype.itemsize}").view(dtype)[()]

    @property
    def integer(self) -> int:
        """The number as a Python int: decimal, 0x, 0b and octal."""
        sign, digits = (-1, self.text[1:]) if self.text[0] == "-" else (1, self.text)
        digits = digits.rstrip("U")
        if re.fullmatch(r"0[0-7]+", digits):
            return sign * int(digits, 8)
        return sign * int(digits, 0)


@dataclass(frozen=True)
class Symbol:
    """The name of a variable, a parameter, a function or a label."""

    name: str


@dataclass(frozen=True)
class Sink:
    """The `_` operand: the result is not wanted."""


@dataclass(frozen=True)
class Vector:
    """`{a, b, c}`, or the argument list `(a, b)` of a call."""

    items: tuple[Any, ...]


@dataclass(frozen=True)
class Pair:
    """`%p1|%q1`: a result and its companion."""

    first: Any
    second: Any


@dataclass(frozen=True)
class Address:
    """`[base + offset]`."""

    base: Any
    offset: int = 0


@dataclass(frozen=True)
class TensorAddress:
    """`[map, {c0, c1}]`: a tensor map and coordinates, innermost first."""

    base: Any
    coordinates: tuple[Any, ...]


Operand = Register | Special | Immediate | Symbol | Sink | Vector | Pair | Address | TensorAddress

SINK = Sink()
