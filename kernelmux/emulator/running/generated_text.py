"""Pieces of the text that `codegen` writes: names of registers and types, and a value as another type."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.ptx.dtypes import bits_of


@cache
def dtype_name(dtype: Any) -> str:
    """The type in the names of `codegen.NAMES`."""
    dtype = np.dtype(dtype)
    return "BOOL" if dtype.kind == "b" else f"{dtype.kind.upper()}{dtype.itemsize}"


def local_name(number: int) -> str:
    """A register inside of a block."""
    return f"r{number}"


def runs(numbers: list[int]) -> list[range]:
    """Ascending numbers as runs of neighbours."""
    found: list[range] = []
    for number in numbers:
        if found and found[-1].stop == number:
            found[-1] = range(found[-1].start, number + 1)
        else:
            found.append(range(number, number + 1))
    return found


def locals_of(run: range) -> str:
    """Neighbouring registers inside of a block."""
    return ", ".join(map(local_name, run))


def entries(run: range) -> str:
    """The same between blocks."""
    return f"R[{run.start}:{run.stop}]" if len(run) > 1 else f"R[{run.start}]"


def converted(value: str, source: np.dtype[Any], target: np.dtype[Any]) -> str:
    """A value of one type as another: the same bits; truncated, or extended by its own sign."""
    if source == target or source.shape:
        return value
    if target.kind == "b" or source.kind == "b":
        raise Unsupported(f"a predicate used as a number, {source} -> {target}")
    if source.itemsize == target.itemsize:
        return f"{value}.view({dtype_name(target)})"
    bits = source if source.kind in "ui" else bits_of(source)
    whole = np.dtype(f"{bits.kind}{target.itemsize}")
    if source.kind == "f":
        value = f"{value}.view({dtype_name(bits)})"
    value = f"{value}.astype({dtype_name(whole)})"
    return value if whole == target else f"{value}.view({dtype_name(target)})"
