"""Two values in one register: two 16-bit ones in 32 bits, two float32 in 64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

U4 = np.dtype("u4")


def halves(value: Any, half: np.dtype[Any]) -> np.ndarray:
    """A register value as rows of two, the low half first: `(n, 2)`, or `(1, 2)` for a scalar."""
    if value.__class__ is np.ndarray:
        return np.ascontiguousarray(value).view(half).reshape(-1, 2)
    return np.array([value]).view(half).reshape(1, 2)


def joined(rows: np.ndarray, scalar: bool, register: np.dtype[Any] = U4) -> Any:
    """The reverse of `halves`."""
    whole = np.ascontiguousarray(rows).view(register)[:, 0]
    return whole[0] if scalar else whole


def packed(half: np.dtype[Any], run: Callable[..., Any]) -> Callable[..., Any]:
    """`run` over halves as a function of registers."""
    register = np.dtype(f"u{2 * half.itemsize}")

    def on_registers(*values: Any) -> Any:
        scalar = all(v.__class__ is not np.ndarray for v in values)
        return joined(run(*(halves(v, half) for v in values)), scalar, register)

    return on_registers
