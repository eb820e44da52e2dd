"""cvt in every rounding mode, against exact fractions: integers of all widths to floats, floats to narrower ones."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from kernelmux.emulator.tests.single import run

# Bits of the significand with its hidden one, and least exponent of a normal number.
FORMATS = {"f16": (11, -14), "bf16": (8, -126), "tf32": (11, -126), "f32": (24, -126), "f64": (53, -1022)}
LARGEST = {
    "f16": Fraction(65504),
    "bf16": (2 - Fraction(1, 128)) * 2**127,
    "tf32": (2 - Fraction(1, 1024)) * 2**127,
    "f32": (2 - Fraction(1, 2**23)) * 2**127,
    "f64": (2 - Fraction(1, 2**52)) * 2**1023,
}


def rounded(value: Fraction, kind: str, mode: str) -> float:
    """The number of a format that a mode chooses; beyond the largest one, infinity or the largest one."""
    if value == 0:
        return 0.0
    precision, least = FORMATS[kind]
    size = abs(value)
    exponent = max(size.numerator.bit_length() - size.denominator.bit_length() - 1, least)
    while size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    step = Fraction(2) ** (exponent - precision + 1)
    below, rest = divmod(size, step)
    negative = value < 0
    up = {
        "rn": rest * 2 > step or (rest * 2 == step and below % 2 == 1),
        "rna": rest * 2 >= step,
        "rz": False,
        "rm": negative and rest > 0,
        "rp": not negative and rest > 0,
    }[mode]
    result = (below + up) * step
    if result > LARGEST[kind]:
        away = mode in ("rn", "rna") or (mode == "rm" and negative) or (mode == "rp" and not negative)
        return (-math.inf if negative else math.inf) if away else float(-LARGEST[kind] if negative else LARGEST[kind])
    return math.copysign(float(result), -1.0 if negative else 1.0)


def bits(kind: str, number: float) -> int:
    """A number of the format as its bits."""
    if math.isnan(number):
        return {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF, "tf32": 0x7FFFFFFF, "f64": 0x7FFFFFFFFFFFFFFF}[kind]
    if kind == "f64":
        return int(np.float64(number).view(np.uint64))
    if kind == "f16":
        return int(np.float16(number).view(np.uint16))
    wide = int(np.float32(number).view(np.uint32))
    return wide >> 16 if kind == "bf16" else wide


def is_nan(kind: str, code: int) -> bool:
    exponent, mantissa = {"f16": (0x7C00, 0x3FF), "bf16": (0x7F80, 0x7F), "f64": (0x7FF << 52, (1 << 52) - 1)}.get(
        kind, (0x7F800000, 0x7FFFFF)
    )
    return code & exponent == exponent and bool(code & mantissa)


REGISTER = {"f64": "b64", "f32": "b32", "tf32": "b32", "f16": "b16", "bf16": "b16"}
WIDTH = {8: "b16", 16: "b16", 32: "b32", 64: "b64"}


def integers(kind: str) -> list[int]:
    """Edges, halfway cases of every format, and random numbers of every size."""
    width, random = int(kind[1:]), np.random.default_rng(1)
    low, high = (-(1 << width - 1), (1 << width - 1) - 1) if kind[0] == "s" else (0, (1 << width) - 1)
    found = [0, 1, low, low + 1, high, high - 1, 65504, 65519, 65520, 65521]
    for top in range(8, width):
        for precision, _ in FORMATS.values():
            half = 1 << max(top - precision, 0)
            found += [(1 << top) + k * half + d for k in (1, 2, 3) for d in (-1, 0, 1)]
    found += [int(random.integers(0, 2**62)) >> int(random.integers(0, 62)) for _ in range(100)]
    found += [-v for v in found]
    return sorted({v for v in found if low <= v <= high})[:1024]


INTEGERS = ["s16", "u16", "s32", "u32", "s64", "u64"]


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize(
    ("target", "source"),
    [*((t, s) for t in ("f16", "f32", "f64") for s in ("s8", "u8", *INTEGERS)), *(("bf16", s) for s in INTEGERS)],
)
def test_integers_to_floats(target: str, source: str, mode: str) -> None:
    numbers, register = integers(source), WIDTH[int(source[1:])]
    size = 16 if register == "b16" else int(register[1:])
    got = run(
        f"cvt.{mode}.{target}.{source} %d0, %a0;", REGISTER[target], [register], [[v % (1 << size) for v in numbers]]
    )
    for number, code in zip(numbers, got.tolist(), strict=True):
        assert code == bits(target, rounded(Fraction(number), target, mode)), f"{number} gives {code:#x}"


def floats(kind: str) -> np.ndarray:
    """Bits of special numbers, of halfway cases of narrower formats, and of random ones over all exponents."""
    random = np.random.default_rng(2)
    if kind == "f64":
        random_bits = random.integers(0, 2**64 - 1, 400, np.uint64)
        near = [
            v * s
            for v in (
                1.0,
                1 + 2.0**-11,
                1 + 2.0**-8,
                1 + 2.0**-24,
                65519.99,
                65520.0,
                3.4028235677973366e38,
                6e-8,
                2.0**-25,
                2.0**-24,
                2.0**-150,
                1e-320,
                math.inf,
                0.0,
                1 + 2.0**-8 + 2.0**-50,
                1 + 2.0**-24 + 2.0**-50,
                2.0**-150 * 1.0000001,
            )
            for s in (1, -1)
        ]
        return np.append(random_bits, np.array([*near, math.nan]).view(np.uint64))
    random_bits = random.integers(0, 2**32, 400, np.uint64).astype(np.uint32)
    near = [
        v * s
        for v in (
            1.0,
            1 + 2.0**-11,
            1 + 2.0**-8,
            1 + 3 * 2.0**-11,
            65519.9,
            65520.0,
            3.3895313892515355e38,
            3.4e38,
            6e-8,
            2.0**-25,
            1e-41,
            2.0**-149,
            math.inf,
            0.0,
        )
        for s in (1, -1)
    ]
    return np.append(random_bits, np.array([*near, math.nan], np.float32).view(np.uint32))


FLOATS: list[tuple[str, str, list[str]]] = [
    ("f32", "f64", ["rn", "rz", "rm", "rp"]),
    ("f16", "f64", ["rn", "rz", "rm", "rp"]),
    ("f16", "f32", ["rn", "rz", "rm", "rp"]),
    ("bf16", "f64", ["rn", "rz", "rm", "rp"]),
    ("bf16", "f32", ["rn", "rz", "rm", "rp"]),
    ("tf32", "f32", ["rn", "rz", "rna"]),
]


@pytest.mark.parametrize(("target", "source", "mode"), [(t, s, m) for t, s, modes in FLOATS for m in modes])
def test_floats_to_narrower_ones(target: str, source: str, mode: str) -> None:
    codes = floats(source)
    got = run(f"cvt.{mode}.{target}.{source} %d0, %a0;", REGISTER[target], [REGISTER[source]], [codes])
    values = codes.view(np.float64 if source == "f64" else np.float32).tolist()
    for value, code in zip(values, got.tolist(), strict=True):
        if math.isnan(value):
            assert is_nan(target, code)
        else:
            want = value if math.isinf(value) or value == 0 else rounded(Fraction(value), target, mode)
            assert code == bits(target, want), f"{value!r} gives {code:#x}, expected {bits(target, want):#x}"


LIMITED = [
    *((f"{m}{r}.satfinite.{t}", t, m) for t in ("f16", "bf16") for m in ("rn", "rz") for r in ("", ".relu")),
    *((f"{m}.relu.{t}", t, m) for t in ("f16", "bf16", "tf32") for m in ("rn", "rz")),
    ("rna.satfinite.tf32", "tf32", "rna"),
]


@pytest.mark.parametrize(
    ("modifiers", "target", "mode"), [(m.replace(".relu.satfinite", ".satfinite.relu"), t, r) for m, t, r in LIMITED]
)
def test_relu_and_satfinite(modifiers: str, target: str, mode: str) -> None:
    codes = floats("f32")
    words = modifiers.split(".")
    order = [mode, *(["relu"] if "relu" in words else []), *(["satfinite"] if "satfinite" in words else []), target]
    got = run(f"cvt.{'.'.join(order)}.f32 %d0, %a0;", REGISTER[target], ["b32"], [codes])
    for value, code in zip(codes.view(np.float32).tolist(), got.tolist(), strict=True):
        if math.isnan(value):
            assert is_nan(target, code)
            continue
        if "relu" in words and value <= 0:
            assert code & (0x7FFF if REGISTER[target] == "b16" else 0x7FFFFFFF) == 0
            continue
        want = value if math.isinf(value) or value == 0 else rounded(Fraction(value), target, mode)
        if "satfinite" in words and math.isinf(want):
            want = math.copysign(float(LARGEST[target]), want)
        assert code == bits(target, want), f"{value!r} gives {code:#x}, expected {bits(target, want):#x}"


def test_pairs_are_the_two_conversions() -> None:
    codes = floats("f32")
    other = np.roll(codes, 7)
    for form, target in (("rn.f16x2", "f16"), ("rz.bf16x2", "bf16"), ("rn.relu.satfinite.bf16x2", "bf16")):
        both = run(f"cvt.{form}.f32 %d0, %a0, %a1;", "b32", ["b32", "b32"], [codes, other])
        single = [run(f"cvt.{form[:-2]}.f32 %d0, %a0;", "b16", ["b32"], [x]) for x in (codes, other)]
        whole: Any = single[1].astype(np.uint32) | single[0].astype(np.uint32) << 16
        assert np.array_equal(both, whole), target
