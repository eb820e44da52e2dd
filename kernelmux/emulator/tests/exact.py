"""Floating-point operations in exact arithmetic, rounded once, to hold instructions to."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import torch
from hypothesis import strategies as st

from kernelmux.emulator.tests.single import run

FORMATS = {"f16": (11, -14, 15), "bf16": (8, -126, 127), "f32": (24, -126, 127), "f64": (53, -1022, 1023)}
WIDTH = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}
NAN, INF = math.nan, math.inf


def decode(bits: int, kind: str) -> float:
    """The value of the bits of a format."""
    digits, low, _ = FORMATS[kind]
    exponent_bits = WIDTH[kind] - digits
    field, mantissa = bits >> (digits - 1) & (1 << exponent_bits) - 1, bits & (1 << digits - 1) - 1
    sign = -1.0 if bits >> (WIDTH[kind] - 1) else 1.0
    if field == (1 << exponent_bits) - 1:
        return math.copysign(NAN, sign) if mantissa else sign * INF
    exponent = max(field, 1) - 1 + low - (digits - 1)
    return sign * math.ldexp(mantissa + ((1 << digits - 1) if field else 0), exponent)


def rounded(value: Fraction, kind: str, mode: str = "rn", zero: float = 0.0) -> float:
    """An exact value in a format; `zero` gives the sign of a zero result."""
    digits, low, high = FORMATS[kind]
    if value == 0:
        return zero
    size, sign = abs(value), 1 if value > 0 else -1
    exponent = max(size.numerator.bit_length() - size.denominator.bit_length(), low - 1)
    while Fraction(2) ** exponent > size and exponent > low:
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= size:
        exponent += 1
    unit = Fraction(2) ** (max(exponent, low) - digits + 1)
    quotient, rest = divmod(size, unit)
    away = {
        "rn": rest * 2 > unit or (rest * 2 == unit and quotient % 2),
        "rz": False,
        "rp": rest and value > 0,
        "rm": rest and value < 0,
    }[mode]
    result = (quotient + int(bool(away))) * unit
    if result >= Fraction(2) ** (high + 1):
        top = (Fraction(2) - Fraction(2) ** (1 - digits)) * Fraction(2) ** high
        inward = mode == "rz" or (mode == "rp" and value < 0) or (mode == "rm" and value > 0)
        return sign * (float(top) if inward else INF)
    return sign * float(result)


def encode_many(values: list[float], kind: str) -> np.ndarray:
    """The bits of values, rounded to nearest."""
    tensor = torch.tensor(values, dtype=torch.float64).to(
        {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}[kind]
    )
    return (
        tensor.view({16: torch.int16, 32: torch.int32, 64: torch.int64}[WIDTH[kind]])
        .numpy()
        .view(f"u{WIDTH[kind] // 8}")
    )


def patterns(kind: str) -> st.SearchStrategy[int]:
    """Bits: special values, values near one another in size, anything."""
    width, (digits, _, _) = WIDTH[kind], FORMATS[kind]
    exponents = (1 << width - digits) - 1
    special = [
        0,
        1 << width - 1,
        1,
        exponents << digits - 1,
        (exponents << digits - 1) + 1,
        exponents << digits - 1 | 1 << width - 1,
        (1 << digits - 1) - 1,
    ]
    near = st.integers(exponents // 2 - 3, exponents // 2 + 3).flatmap(
        lambda e: st.integers(0, (1 << digits - 1) - 1).map(lambda m: e << digits - 1 | m)
    )
    few = st.integers(exponents // 2 - 30, exponents // 2 + 30).flatmap(
        lambda e: st.integers(0, 3).map(lambda m: max(e, 0) << digits - 1 | m << digits - 3)
    )
    return st.one_of(st.sampled_from(special), near, few, st.integers(0, (1 << width) - 1))


def _zero(signs: tuple[float, float], mode: str) -> float:
    """The sum of two numbers with these signs, if it is zero."""
    a, b = signs
    return math.copysign(0.0, a) if a == b else -0.0 if mode == "rm" else 0.0


def add(a: float, b: float, kind: str, mode: str = "rn") -> float:
    """a + b rounded to a format."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return a + b
    zero = _zero((math.copysign(1, a), math.copysign(1, b)), mode)
    return rounded(Fraction(a) + Fraction(b), kind, mode, zero)


def multiply(a: float, b: float, kind: str, mode: str = "rn") -> float:
    """a * b rounded to a format."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b
    sign = math.copysign(1, a) * math.copysign(1, b)
    return rounded(Fraction(a) * Fraction(b), kind, mode, math.copysign(0.0, sign))


def fma(a: float, b: float, c: float, kind: str, mode: str = "rn") -> float:
    """a * b + c rounded once to a format."""
    if not all(map(math.isfinite, (a, b))):
        return a * b + c
    if not math.isfinite(c):
        return c
    sign = math.copysign(1, a) * math.copysign(1, b)
    return rounded(Fraction(a) * Fraction(b) + Fraction(c), kind, mode, _zero((sign, math.copysign(1, c)), mode))


def divide(a: float, b: float, kind: str, mode: str = "rn") -> float:
    """a / b rounded to a format."""
    sign = math.copysign(1, a) * math.copysign(1, b)
    if math.isnan(a) or math.isnan(b) or (a == b == 0) or (math.isinf(a) and math.isinf(b)):
        return NAN
    if b == 0 or math.isinf(a):
        return sign * INF
    return rounded(Fraction(a) / Fraction(b) if math.isfinite(b) else Fraction(0), kind, mode, sign * 0.0)


def root(a: float, kind: str, mode: str = "rn") -> float:
    """The square root rounded to a format."""
    if not (a > 0 and math.isfinite(a)):
        return NAN if math.isnan(a) or a < 0 else a
    scaled = Fraction(a) * 4**1200  # an integer with more digits than any format needs
    whole = math.isqrt(int(scaled))
    between = 0 if whole * whole == scaled else Fraction(1, 2)
    return rounded((whole + between) / Fraction(2) ** 1200, kind, mode)


def extreme(a: float, b: float, choose: Callable[[float, float], float]) -> float:
    """min or max, where a NaN loses and -0 is smaller than +0."""
    if math.isnan(a) or math.isnan(b):
        return b if math.isnan(a) else a
    if a == b == 0:
        return choose(math.copysign(1, a), math.copysign(1, b)) * 0.0
    return choose(a, b)


def check(code: str, kind: str, rows: list[tuple[int, ...]], definition: Callable[..., float]) -> None:
    """The instruction gives what `definition` says of the values of its operands."""
    register = f"b{WIDTH[kind]}"
    got = run(code, register, [register] * len(rows[0]), list(zip(*rows, strict=True)))
    for row, bits in zip(rows, got, strict=True):
        values = [decode(b, kind) for b in row]
        want, have = definition(*values), decode(int(bits), kind)
        same = (
            math.isnan(have) if math.isnan(want) else have == want and math.copysign(1, have) == math.copysign(1, want)
        )
        assert same, f"{code} of {values} ({[hex(b) for b in row]}): expected {want}, got {have}"


def rows_of(kind: str, count: int) -> st.SearchStrategy[list[tuple[int, ...]]]:
    """Operands of some threads as bits."""
    return st.lists(st.tuples(*[patterns(kind)] * count), min_size=1, max_size=60)
