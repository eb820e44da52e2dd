"""How far two results are apart."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelmux.emulator.arithmetic.floats import from_bf16
from kernelmux.emulator.validation.hardware.launching import Runnable

Array = np.ndarray[Any, Any]
# bits of the mantissa of each float type; results of these kinds are compared as such floats
MANTISSA = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}
SINGLE = {"f16x2": "f16", "f16x4": "f16", "bf16x2": "bf16", "bf16x4": "bf16"}


@dataclass(frozen=True)
class Difference:
    """Of the results of one case.

    results    how many numbers were compared (two in a pair of halves).
    differing  how many of them have other bits; NaN and NaN are the same.
    ulp        the largest distance in units of the last place; None where a number stands against NaN or infinity, or
               two integers differ.
    absolute   the largest difference of finite floats.
    """

    results: int
    differing: int
    ulp: int | None
    absolute: float = 0.0


def difference(case: Runnable, ours: Sequence[Array], theirs: Sequence[Array]) -> Difference:
    """Of the outputs of a case on the emulator and on a GPU."""
    parts = [of_kind(kind, a, b) for kind, a, b in zip(case.stored, ours, theirs, strict=True)]
    known = [part.ulp for part in parts if part.ulp is not None]
    ulp = max(known) if len(known) == len(parts) else None
    absolute = max(part.absolute for part in parts)
    return Difference(sum(p.results for p in parts), sum(p.differing for p in parts), ulp, absolute)


def of_kind(kind: str, ours: Array, theirs: Array) -> Difference:
    """Of two arrays of one type; types that are not floats are compared as bits."""
    kind = SINGLE.get(kind, kind)
    if kind not in MANTISSA:
        wrong = int(np.count_nonzero(ours.view(f"u{ours.itemsize}") != theirs.view(f"u{theirs.itemsize}")))
        return Difference(ours.size, wrong, None if wrong else 0)
    a, b = canonical(kind, ours), canonical(kind, theirs)
    different = a != b
    if not different.any():
        return Difference(a.size, 0, 0)
    a, b, size = a[different], b[different], a.size
    finite = _finite(kind, a) & _finite(kind, b)
    apart = np.abs(_number(kind, a[finite]) - _number(kind, b[finite]))
    steps = np.abs(_ordinal(a) - _ordinal(b))
    return Difference(size, a.size, int(steps.max()) if finite.all() else None, float(apart.max(initial=0.0)))


def canonical(kind: str, values: Array) -> Array:
    """Bits with all NaN alike."""
    kind = SINGLE.get(kind, kind)
    if kind not in MANTISSA:
        return values
    size = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}[kind]
    bits = np.ascontiguousarray(values).view(f"u{size}")
    magnitude = bits & bits.dtype.type((1 << 8 * size - 1) - 1)
    return np.where(magnitude > _infinity(kind, bits.dtype), magnitude.dtype.type((1 << 8 * size - 1) - 1), bits)


def _infinity(kind: str, dtype: np.dtype[Any]) -> Any:
    return dtype.type((1 << 8 * dtype.itemsize - 1) - (1 << MANTISSA[kind]))


def _finite(kind: str, bits: Array) -> Array:
    magnitude = bits & bits.dtype.type((1 << 8 * bits.itemsize - 1) - 1)
    return np.asarray(magnitude < _infinity(kind, bits.dtype))


def _number(kind: str, bits: Array) -> Array:
    """The floats as float64."""
    return np.asarray(from_bf16(bits) if kind == "bf16" else bits.view(f"f{bits.itemsize}"), np.float64)


def _ordinal(bits: Array) -> Array:
    """Where a float stands among all of its type; -0 and 0 are one apart."""
    sign = bits.dtype.type(1 << 8 * bits.itemsize - 1)
    magnitude = (bits & ~sign).astype(np.int64)
    return np.asarray(np.where(bits & sign, -magnitude - 1, magnitude))


def share(differing: int, results: int) -> str:
    """How many results have other bits, as text."""
    return f"{differing:,} ({differing / results:.2%})" if differing else "none"


def digest(case: Runnable, outputs: Iterable[Array]) -> str:
    """A short name of the bits of a case's results, with all NaN alike."""
    hashed = hashlib.sha256()
    for kind, values in zip(case.stored, outputs, strict=True):
        hashed.update(canonical(kind, values).tobytes())
    return hashed.hexdigest()[:12]
