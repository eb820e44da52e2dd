"""PTX type names as numpy types."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np

from kernelmux.emulator.errors import Unsupported

B16, B32 = np.dtype("u2"), np.dtype("u4")
_KINDS = {"u": "u", "s": "i", "b": "u", "f": "f"}
_PACKED: dict[str, np.dtype[Any]] = {
    "f16x2": B32,
    "bf16x2": B32,
    "bf16": B16,
    "tf32": np.dtype("f4"),
    "pred": np.dtype(bool),
}
_NAME = re.compile(r"([usbf])(8|16|32|64)$")


@cache
def dtype_of(name: str) -> np.dtype[Any]:
    """The numpy type of a PTX type; bf16 and packed types as their bits."""
    if name in _PACKED:
        return _PACKED[name]
    match = _NAME.match(name)
    if match is None:
        raise Unsupported(f"the PTX type .{name} is not emulated")
    return np.dtype(f"{_KINDS[match[1]]}{int(match[2]) // 8}")


def size_of(name: str) -> int:
    """Bytes of a PTX type."""
    return 16 if name == "b128" else 1 if name == "pred" else dtype_of(name).itemsize


def bits_of(dtype: Any) -> np.dtype[Any]:
    """The unsigned type of the same width."""
    dtype = np.dtype(dtype)
    return dtype if dtype.kind == "b" else np.dtype(f"u{dtype.itemsize}")
