"""Rounding to other directions and between 16-bit formats, against exact arithmetic."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmux.emulator.tests.exact import WIDTH, check, decode, encode_many, rounded, rows_of
from kernelmux.emulator.tests.single import run

MODES = ["rz", "rm", "rp"]


def _finite(*values: float) -> bool:
    return all(map(math.isfinite, values))


def _sum(a: float, b: float, mode: str) -> float:
    if not _finite(a, b):
        return a + b
    return rounded(Fraction(a) + Fraction(b), "f64", mode, a + b if a == b == 0 and _same(a, b) else _zero(mode))


def _same(a: float, b: float) -> bool:
    return math.copysign(1, a) == math.copysign(1, b)


def _zero(mode: str) -> float:
    return -0.0 if mode == "rm" else 0.0


def _product(a: float, b: float, mode: str) -> float:
    return rounded(Fraction(a) * Fraction(b), "f64", mode, a * b) if _finite(a, b) else a * b


def _quotient(a: float, b: float, mode: str) -> float:
    with np.errstate(all="ignore"):
        near = float(np.float64(a) / np.float64(b))
    return rounded(Fraction(a) / Fraction(b), "f64", mode, near) if _finite(a, b) and b else near


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=10, deadline=None)
@given(rows=rows_of("f64", 2))
def test_doubles_in_every_direction(mode: str, rows: list[tuple[int, ...]]) -> None:
    check(f"add.{mode}.f64 %d0, %a0, %a1;", "f64", rows, lambda a, b: _sum(a, b, mode))
    check(f"sub.{mode}.f64 %d0, %a0, %a1;", "f64", rows, lambda a, b: _sum(a, -b, mode))
    check(f"mul.{mode}.f64 %d0, %a0, %a1;", "f64", rows, lambda a, b: _product(a, b, mode))
    check(f"div.{mode}.f64 %d0, %a0, %a1;", "f64", rows, lambda a, b: _quotient(a, b, mode))
    check(f"rcp.{mode}.f64 %d0, %a0;", "f64", [r[:1] for r in rows], lambda a: _quotient(1.0, a, mode))


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=10, deadline=None)
@given(values=st.lists(st.tuples(*[st.floats(-1e3, 1e3)] * 3), min_size=1, max_size=40))
def test_fused_doubles_and_roots_in_every_direction(mode: str, values: list[tuple[float, ...]]) -> None:
    columns = [[v + (v == 0) for v in column] for column in zip(*values, strict=True)]
    rows = list(zip(*(encode_many(c, "f64").tolist() for c in columns), strict=True))

    def fused(a: float, b: float, c: float) -> float:
        return rounded(Fraction(a) * Fraction(b) + Fraction(c), "f64", mode)

    check(f"fma.{mode}.f64 %d0, %a0, %a1, %a2;", "f64", rows, fused)
    got = run(f"sqrt.{mode}.f64 %d0, %a0;", "b64", ["b64"], [encode_many([abs(v) for v in columns[0]], "f64")])
    for value, root in zip(columns[0], got.view(np.float64).tolist(), strict=True):
        below, above = (Fraction(math.nextafter(root, x)) ** 2 for x in (0, math.inf))
        square, exact = Fraction(root) ** 2, Fraction(abs(value))
        assert (square <= exact < above) if mode != "rp" else (below < exact <= square)


@pytest.mark.parametrize(("target", "source"), [("f16", "bf16"), ("bf16", "f16"), ("f64", "bf16")])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_between_16_bit_formats(target: str, source: str, data: Any) -> None:
    rows = data.draw(rows_of(source, 1))
    rounding = "" if target == "f64" else ".rn"
    code = f"cvt{rounding}.{target}.{source} %d0, %a0;"
    got = run(code, f"b{WIDTH[target]}", ["b16"], list(zip(*rows, strict=True)))
    for (bits,), result in zip(rows, got, strict=True):
        value, have = decode(bits, source), decode(int(result), target)
        want = rounded(Fraction(value), target, "rn", value) if math.isfinite(value) else value
        assert have == want or (math.isnan(have) and math.isnan(want)), f"{value} -> {have}, expected {want}"


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("name", ["min", "max"])
def test_extremes_of_magnitudes_with_the_sign_of_the_product(kind: str, name: str) -> None:
    values = [1.0, -2.0, 0.5, -0.0, 3.0, -1.0]
    bits = encode_many(values, kind).tolist()
    rows: list[tuple[int, ...]] = [(a, b) for a in bits for b in bits]

    def definition(a: float, b: float) -> float:
        size = min(abs(a), abs(b)) if name == "min" else max(abs(a), abs(b))
        return math.copysign(size, math.copysign(1, a) * math.copysign(1, b))

    check(f"{name}.xorsign.abs.{kind} %d0, %a0, %a1;", kind, rows, definition)
