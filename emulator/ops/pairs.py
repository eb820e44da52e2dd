"""Two 16-bit values in a 32-bit register."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

U4 = np.dtype("u4")


def halves(value: Any, half: np.dtype[Any]) -> np.ndarray:
    """A 32-bit register value as rows of two, the low half first: `(n, 2)`, or `(1, 2)` for a scalar."""
    if value.__class__ is np.ndarray:
        return np.ascontiguousarray(value).view(half).reshape(-1, 2)
    return np.array([value]).view(half).reshape(1, 2)


def joined(rows: np.ndarray, scalar: bool) -> Any:
    """The reverse of `halves`."""
    whole = np.ascontiguousarray(rows).view(U4)[:, 0]
    return whole[0] if scalar else whole


def packed(half: np.dtype[Any], run: Callable[..., Any]) -> Callable[..., Any]:
    """`run` over halves as a function of registers."""

    def on_registers(*values: Any) -> Any:
        scalar = all(v.__class__ is not np.ndarray for v in values)
        return joined(run(*(halves(v, half) for v in values)), scalar)

    return on_registers
