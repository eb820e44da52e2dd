"""Sums of tensor cores against the same rule in exact fractions."""

from fractions import Fraction
from math import floor, log2

import numpy as np
import pytest

from kernelmux.emulator.arithmetic.fused_dot import FP8, FULL, FusedDotRule, fused_dot


def cut(value: Fraction, unit: Fraction) -> Fraction:
    """Towards zero to a multiple of `unit`."""
    whole = abs(value) // unit
    return whole * unit if value > 0 else -whole * unit


def exponent(x: float) -> int:
    return floor(log2(abs(x)))


def defined(a: list[float], b: list[float], c: float, rule: FusedDotRule) -> float:
    """One sum by the rule's words; normal numbers."""
    exponents = [exponent(x) + exponent(y) for x, y in zip(a, b, strict=True) if x and y]
    exponents += [exponent(c)] if c else []
    if not exponents:
        return 0.0
    unit = Fraction(2) ** (max(exponents) - rule.fraction)
    terms = [Fraction(x) * Fraction(y) for x, y in zip(a, b, strict=True)] + [Fraction(c)]
    total = sum((cut(term, unit) for term in terms), Fraction(0))
    if not total:
        return 0.0
    top = max(total.numerator.bit_length() - total.denominator.bit_length() - 1, -200)
    top += abs(total) >= Fraction(2) ** (top + 1)
    return float(cut(total, Fraction(2) ** (top - rule.digits + 1)))


@pytest.mark.parametrize(("kind", "rule"), [("f16", FULL), ("bf16", FULL), ("e4m3", FP8)])
@pytest.mark.parametrize("spread", [0, 6])
def test_against_the_definition(kind: str, rule: FusedDotRule, spread: int) -> None:
    rng = np.random.default_rng(1)

    def draw(*shape: int) -> np.ndarray:
        values = rng.choice([-1, 1], shape) * rng.integers(8, 16, shape) / 8  # four digits: every type holds them
        return (values * 2.0 ** rng.integers(-spread, spread + 1, shape)).astype(np.float32)

    a, b, c = draw(2, 4, 16), draw(2, 16, 3), rng.standard_normal((2, 4, 3)).astype(np.float32)
    c[0, 0, 0] = a[0, 1, 3] = 0
    got = fused_dot(a, b, c, (kind, kind), rule)
    for g, m, n in np.ndindex(c.shape):
        want = defined(a[g, m].tolist(), b[g, :, n].tolist(), float(c[g, m, n]), rule)
        assert got[g, m, n] == np.float32(want), (g, m, n)


def one(a: list[float], b: list[float], c: float, **more: object) -> float:
    x, y = np.array(a, np.float32).reshape(1, 1, -1), np.array(b, np.float32).reshape(1, -1, 1)
    with np.errstate(all="ignore"):  # as in a launch
        return float(fused_dot(x, y, np.array([[[c]]], np.float32), ("f16", "f16"), **more)[0, 0, 0])  # type: ignore[arg-type]


def test_terms_are_cut_and_not_rounded() -> None:
    """Each of 15 terms of 2^-26 beside 1 is below the unit 2^-25: all vanish, though together they are 3.5 units."""
    assert one([1] + [2.0**-13] * 15, [1] + [2.0**-13] * 15, 0) == 1
    assert one([1, 2.0**-12], [1, 2.0**-13], 0, half=False) == 1  # 2^-25 is kept and then cut from 24 digits
    assert one([1, 2.0**-11], [1, -(2.0**-14)], 0) == 1 - 2.0**-24  # cut towards zero: 1 - 2^-25 has 25 digits


def test_small_sums_after_cancellation_keep_only_what_was_aligned() -> None:
    assert one([1, 1, 2.0**-13], [1, -1, 2.0**-13], 0) == 0
    assert one([1, 1, 2.0**-12], [1, -1, 2.0**-13], 0) == 2.0**-25


def test_the_exponent_of_a_product_is_that_of_its_factors() -> None:
    """1.5 * 1.5 = 2.25 counts as 1: the unit is 2^-25, not 2^-24."""
    assert one([1.5, -1.5, 2.0**-12], [1.5, 1.5, 2.0**-13], 0) == 2.0**-25


def test_special_values() -> None:
    inf, nan = float("inf"), float("nan")
    assert one([inf, 1], [1, 1], 0) == inf
    assert np.isnan(one([inf, 1], [0, 1], 0)) and np.isnan(one([inf, inf], [1, -1], 0)) and np.isnan(one([1], [1], nan))
    assert one([1], [1], -inf) == -inf


def test_halves_are_rounded_once_and_to_nearest() -> None:
    assert one([1, 2.0**-11], [1, 1], 0, half=True) == 1  # half way, to even
    assert one([1, 2.0**-11, 2.0**-12], [1, 1, 2.0**-13], 0, half=True) == 1 + 2.0**-10
    assert one([60000], [2], 0, half=True) == float("inf")
