"""The functions that an H200 approximates (MUFU), bit by bit: float32 to float32, arrays or scalars, subnormals flushed.

The first bits of an argument's fraction choose a segment, the other 17 are the `rest`; the unit forms
C0 + C1 * rest + C2 * square and cuts it to 24 digits, towards zero. `square` is rest * rest as the sum of the products of
pairs of its bits, without those whose place is below 2^19. Oberman and Siu (2005) describe such a unit. What surrounds it
was found, like the coefficients, from results of an H200, of which none differs: those for all 2^23 fractions (sine and
cosine: for 3.7 million different angles of a quadrant). float64 holds all numbers here exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmux.emulator.arithmetic.mufu_tables import (
    LOGARITHM,
    POWER,
    RECIPROCAL,
    RECIPROCAL_ROOT,
    ROOT,
    SINE,
    TANH,
    TANH_SEGMENTS,
    CoefficientTable,
)

Array = NDArray[Any]
F4, F8, I4, I8, U2, U4, U8 = (np.dtype(t) for t in ("f4", "f8", "i4", "i8", "u2", "u4", "u8"))
SIGN, INFINITY, NAN = I4.type(-(2**31)), 0x7F800000, 0x7FFFFFFF
LARGE = F4.type(200).view(I4)  # 2^200 becomes infinite as float32
ONE, FRACTION, REST = 1 << 23, (1 << 23) - 1, (1 << 17) - 1
NORMAL = U4.type(INFINITY - ONE)
DIGITS = U8.type(2**64 - 2**29)  # the upper 24 of a float64
TURN = F8.type(F4.type(0.15915494))  # 1 / (2 pi)
TANH_FIRST = np.cumsum([0, *TANH_SEGMENTS[:-1]])
TANH_UNUSED = (6 - np.log2(TANH_SEGMENTS)).astype(I4)


def _squares() -> Array:
    """uint16 `[2^17]`: the square of each rest, in units of 2^19."""
    square = np.zeros(1, I8)
    for bit in range(17):
        pairs = np.arange(1 << bit) >> (18 - bit)  # with each lower bit i: place bit + i + 1, as there are two of them
        own = 1 << 2 * bit - 19 if 2 * bit >= 19 else 0
        square = np.concatenate([square, square + pairs + own])
    return square.astype(U2)


SQUARES = _squares()


def interpolate(table: CoefficientTable, segment: Any, rest: Any) -> Any:
    """float64: C0 + C1 * rest + C2 * square."""
    segment, rest = segment.astype(np.intp), rest.astype(np.intp)  # what `take` wants
    total = table.c1.take(segment, mode="wrap") * rest  # no index is outside: this mode does not look
    total += table.c0.take(segment, mode="wrap")
    total += table.c2.take(segment, mode="wrap") * SQUARES.take(rest, mode="wrap")
    return total


def bits_of(x: Any) -> tuple[Any, Any]:
    """int32: float32 values as bits, and those without the sign."""
    bits = np.asarray(x).view(I4)[()]
    return bits, bits & NAN


def chosen(bits: Any, *special: tuple[Any, Any]) -> Any:
    """Bits as float32; where a condition holds (the last one wins), those given with it."""
    for condition, value in special:
        bits = np.where(condition, value, bits)
    return np.asarray(bits, I4).view(F4)[()]


def normal(bits: Any) -> bool:
    """Whether all are positive normal numbers: then no special case is."""
    return bool(np.all((bits - ONE).view(U4) < NORMAL))  # one comparison for both ends


def cut(total: Any) -> Any:
    """float64 to float32, towards zero."""
    return (np.asarray(total).view(U8) & DIGITS).view(F8).astype(F4)


def rcp(x: Any) -> Any:
    """1 / x."""
    bits, size = bits_of(x)
    total = interpolate(RECIPROCAL, size >> 16 & 127, (size & 0xFFFF) << 1).astype(I4)
    total += 252 - (size >> 23) << 23
    sign = bits & SIGN
    if normal(size) and np.all(total >= ONE):
        return chosen(total | sign)
    none = (total < ONE) | (size == INFINITY)
    return chosen(total | sign, (none, sign), (size < ONE, sign | INFINITY), (size > INFINITY, NAN))


def rsqrt(x: Any) -> Any:
    """1 / sqrt(x)."""
    bits, size = bits_of(x)
    total = interpolate(RECIPROCAL_ROOT, size >> 17 & 127, size & REST).astype(I4)
    total += size & 0xFFFFFF == ONE  # even powers of 2 have exact results
    total += 125 - ((size >> 23) - 127 >> 1) << 23
    if normal(bits):
        return chosen(total)
    zero = (bits & SIGN) | INFINITY
    return chosen(total, (size == INFINITY, 0), (bits < 0, NAN), (size < ONE, zero), (size > INFINITY, NAN))


def sqrt(x: Any) -> Any:
    """The square root."""
    bits, size = bits_of(x)
    total = interpolate(ROOT, size >> 17 & 127, size & REST).astype(I4)
    total += 126 + ((size >> 23) - 127 >> 1) << 23
    if normal(bits):
        return chosen(total)
    zero = bits & SIGN
    return chosen(total, (size == INFINITY, INFINITY), (bits < 0, NAN), (size < ONE, zero), (size > INFINITY, NAN))


def ex2(x: Any) -> Any:
    """2^x. |x| is cut to 23 bits after the point; if x is negative and they are not zero, their complement is used."""
    bits, size = bits_of(x)
    fixed = (np.minimum(size, LARGE).view(F4) * F4.type(2**23)).astype(I4)
    exact = fixed & FRACTION == 0
    fixed = fixed ^ bits >> 31
    if np.any(exact):
        fixed += exact & (bits < 0)
    whole = fixed >> 23
    total = interpolate(POWER, fixed >> 17 & 63, fixed & REST).astype(I4)
    total += whole + 126 << 23
    if np.all((whole + 126).view(U4) < U4.type(254)):
        return chosen(total)
    return chosen(total, (whole < -126, 0), (whole > 127, INFINITY), (size > INFINITY, NAN))


def lg2(x: Any) -> Any:
    """log2(x). It has 36 bits after the point; of a negative one the complement is cut to 24 digits."""
    bits, size = bits_of(x)
    total = np.floor(interpolate(LOGARITHM, size >> 17 & 63, size & REST))
    total += ((size >> 23) - 127) * 2.0**36
    total += total < 0
    result = cut(total) * F4.type(2.0**-36)
    log = np.asarray(result).view(I4)
    if normal(bits):
        return chosen(log, (bits == 127 << 23, 0))
    zero = SIGN | INFINITY
    return chosen(
        log,
        (bits == 127 << 23, 0),
        (size == INFINITY, INFINITY),
        (bits < 0, NAN),
        (size < ONE, zero),
        (size > INFINITY, NAN),
    )


def sin(x: Any) -> Any:
    """The sine."""
    bits, size = bits_of(x)
    return _circular(size, 0, bits & SIGN)


def cos(x: Any) -> Any:
    """The cosine."""
    return _circular(bits_of(x)[1], 1 << 23, I4.type(0))


def _circular(size: Any, start: int, sign: Any) -> Any:
    """The sine of a positive angle, from `start` on, in units of 2^-25 turns; `sign` changes its own.

    The angle is multiplied by 1 / (2 pi) in float32, towards zero; above 2^27 only whole turns are left.
    """
    angle = np.asarray(np.where(size < 154 << 23, size, 0)).view(F4)
    turns = (angle * TURN).view(U8) & DIGITS
    fixed = (turns.view(F8) * 2.0**25).astype(I8) + start
    place = (fixed ^ -(fixed >> 23 & 1)) & FRACTION
    sine = np.asarray(cut(interpolate(SINE, place >> 17, place & REST))).view(I4)
    sine = sine | sign ^ (fixed << 7).astype(I4) & SIGN
    return chosen(sine) if np.all(size < INFINITY) else chosen(sine, (size >= INFINITY, NAN))


def tanh(x: Any) -> Any:
    """tanh(x): x itself below 2^-8. A fraction's bits that number its octave's segments and 17 more are used."""
    bits, size = bits_of(x)
    octave = np.clip((size >> 23) - 119, 0, len(TANH_SEGMENTS) - 1)
    place = (size & FRACTION) >> TANH_UNUSED.take(octave)
    total = cut(interpolate(TANH, TANH_FIRST.take(octave) + (place >> 17), place & REST))
    sign, result = bits & SIGN, np.asarray(total).view(I4)
    return chosen(
        result | sign, (size < 119 << 23, bits), (size >= 130 << 23, sign | 127 << 23), (size > INFINITY, NAN)
    )
