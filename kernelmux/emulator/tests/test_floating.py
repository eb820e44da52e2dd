"""Floating-point instructions against exact arithmetic."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmux.emulator.arithmetic.floats import fma32
from kernelmux.emulator.tests.exact import (
    INF,
    NAN,
    WIDTH,
    add,
    check,
    decode,
    encode_many,
    extreme,
    fma,
    multiply,
    rounded,
    rows_of,
)
from kernelmux.emulator.tests.single import run

KINDS = ["f16", "bf16", "f32", "f64"]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_add_and_multiply(kind: str, data: Any) -> None:
    rows = data.draw(rows_of(kind, 2))
    rounding = ".rn" if kind != "f16" else ""
    check(f"add{rounding}.{kind} %d0, %a0, %a1;", kind, rows, lambda a, b: add(a, b, kind))
    check(f"sub{rounding}.{kind} %d0, %a0, %a1;", kind, rows, lambda a, b: add(a, -b, kind))
    check(f"mul{rounding}.{kind} %d0, %a0, %a1;", kind, rows, lambda a, b: multiply(a, b, kind))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_fma(kind: str, data: Any) -> None:
    """One rounding, also where a second one would show."""
    check(f"fma.rn.{kind} %d0, %a0, %a1, %a2;", kind, data.draw(rows_of(kind, 3)), lambda a, b, c: fma(a, b, c, kind))


def test_fma_of_arrays_and_scalars() -> None:
    """What is the same in all lanes arrives as a scalar, of packed halves as one row."""
    a, b = np.float32(1 + 2**-12), np.float32(1 + 2**-12)  # their product lies halfway between two float32 numbers
    for c in (2.0**-60, -(2.0**-60), 0.0):
        want = np.float32(fma(float(a), float(b), c, "f32"))
        for shape in ((), (3,), (3, 2), (1, 2)):
            addend = np.full(shape, c, np.float32)[()]
            assert np.array_equal(fma32(a, b, addend), np.full(shape, want))
            row = np.full((1, 2), a)
            if shape != (3,):
                assert np.array_equal(fma32(row, row, np.broadcast_to(addend, (3, 2))), np.full((3, 2), want))


def test_fma_halfway_cases() -> None:
    """A product halfway between two float32: a tiny addend decides, which float64 alone would lose."""
    factor = encode_many([1 + 2.0**-12, 1 + 2.0**-12], "f32").tolist()  # product 1 + 2^-11 + 2^-24: halfway
    for tiny in (2.0**-80, -(2.0**-80), 0.0):
        addend = encode_many([tiny], "f32").tolist()
        check("fma.rn.f32 %d0, %a0, %a1, %a2;", "f32", [(*factor, *addend)], lambda x, y, z: fma(x, y, z, "f32"))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_min_max_neg_abs(kind: str, data: Any) -> None:
    rows = data.draw(rows_of(kind, 2))
    check(f"min.{kind} %d0, %a0, %a1;", kind, rows, lambda a, b: extreme(a, b, min))
    check(f"max.{kind} %d0, %a0, %a1;", kind, rows, lambda a, b: extreme(a, b, max))
    check(f"neg.{kind} %d0, %a0;", kind, [r[:1] for r in rows], lambda a: -a)
    check(f"abs.{kind} %d0, %a0;", kind, [r[:1] for r in rows], abs)


@settings(max_examples=10, deadline=None)
@given(rows=rows_of("f32", 2))
def test_min_max_propagate_nan(rows: list[tuple[int, ...]]) -> None:
    check(
        "max.NaN.f32 %d0, %a0, %a1;",
        "f32",
        rows,
        lambda a, b: NAN if math.isnan(a) or math.isnan(b) else extreme(a, b, max),
    )


@settings(max_examples=10, deadline=None)
@given(rows=rows_of("f32", 2))
def test_divide_and_root(rows: list[tuple[int, ...]]) -> None:
    def divide(a: float, b: float) -> float:
        sign = math.copysign(1, a) * math.copysign(1, b)
        if b == 0 or not (math.isfinite(a) and math.isfinite(b)):
            with np.errstate(all="ignore"):
                return float(np.float64(a) / np.float64(b))
        return rounded(Fraction(a) / Fraction(b), "f32", "rn", math.copysign(0.0, sign))

    check("div.rn.f32 %d0, %a0, %a1;", "f32", rows, divide)
    check("rcp.rn.f32 %d0, %a0;", "f32", [r[:1] for r in rows], lambda a: divide(1.0, a))
    check("copysign.f32 %d0, %a0, %a1;", "f32", rows, lambda a, b: math.copysign(b, a))


@settings(max_examples=10, deadline=None)
@given(rows=rows_of("f32", 2))
def test_packed_halves_equal_single_ones(rows: list[tuple[int, ...]]) -> None:
    """add.f16x2 is add.f16 of both halves; so for bfloat16, and for fma."""
    columns = [np.array(c, np.uint32) for c in zip(*rows, strict=True)]
    for kind in ("f16", "bf16"):
        whole = run(f"fma.rn.{kind}x2 %d0, %a0, %a1, %a0;", "b32", ["b32"] * 2, columns)
        for shift in (0, 16):
            halves = [(c >> shift & 0xFFFF).astype(np.uint16) for c in columns]
            single = run(f"fma.rn.{kind} %d0, %a0, %a1, %a0;", "b16", ["b16"] * 2, halves)
            np.testing.assert_array_equal((whole >> shift & 0xFFFF).astype(np.uint16), single)


@pytest.mark.parametrize(
    ("target", "source"),
    [(t, s) for t in KINDS for s in KINDS if t != s and {t, s} != {"f16", "bf16"} and (t, s) != ("f64", "bf16")],
)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_convert_floats(target: str, source: str, data: Any) -> None:
    rows = data.draw(rows_of(source, 1))
    narrowing = WIDTH[target] < WIDTH[source]
    got = run(
        f"cvt{'.rn' if narrowing else ''}.{target}.{source} %d0, %a0;",
        f"b{WIDTH[target]}",
        [f"b{WIDTH[source]}"],
        list(zip(*rows, strict=True)),
    )
    for (bits,), result in zip(rows, got, strict=True):
        value, have = decode(bits, source), decode(int(result), target)
        want = rounded(Fraction(value), target, "rn", value) if math.isfinite(value) else value
        assert have == want or (math.isnan(have) and math.isnan(want)), f"{value} -> {have}, expected {want}"


@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize(
    ("target", "low", "high"),
    [("s32", -(2**31), 2**31 - 1), ("u32", 0, 2**32 - 1), ("s64", -(2**63), 2**63 - 1), ("u8", 0, 255)],
)
@settings(max_examples=5, deadline=None)
@given(rows=rows_of("f32", 1))
def test_float_to_integer(mode: str, target: str, low: int, high: int, rows: list[tuple[int, ...]]) -> None:
    """Rounded, clamped, NaN gives 0; as a 64-bit integer the highest bit alone, as on an H200."""
    register, nothing = ("b64", low) if target.endswith("64") else ("b32", 0)
    got = run(f"cvt.{mode}.{target}.f32 %d0, %a0;", register, ["b32"], list(zip(*rows, strict=True)))
    rounding = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}[mode]
    for (bits,), result in zip(rows, got, strict=True):
        value = decode(bits, "f32")
        want = (
            nothing
            if math.isnan(value)
            else (high if value > 0 else low)
            if math.isinf(value)
            else max(low, min(high, rounding(value)))
        )
        assert int(result) == want & ((1 << int(register[1:])) - 1), f"{value}: {int(result)}, expected {want}"


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize(
    ("target", "source"),
    [("f32", "s32"), ("f32", "u64"), ("f32", "s64"), ("f64", "s64"), ("f64", "u64"), ("f16", "s32"), ("bf16", "u64")],
)
@settings(max_examples=5, deadline=None)
@given(values=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20))
def test_integer_to_float(target: str, source: str, mode: str, values: list[int]) -> None:
    width = int(source[1:])
    bits = [
        v & (1 << width) - 1 for v in (*values, 2**64 - 1, 2**63, 2**63 + 1, 2**63 - 1, 2**53 + 1, 2**40 + 2**32 + 1)
    ]
    got = run(f"cvt.{mode}.{target}.{source} %d0, %a0;", f"b{WIDTH[target]}", [f"b{width}"], [bits])
    for value, result in zip(bits, got, strict=True):
        number = value - (1 << width) if source[0] == "s" and value >> width - 1 else value
        assert decode(int(result), target) == rounded(Fraction(number), target, mode)


COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_comparisons(kind: str, data: Any) -> None:
    """Ordered forms are false for NaN, unordered forms true."""
    rows = data.draw(rows_of(kind, 2))
    columns, register = list(zip(*rows, strict=True)), f"b{WIDTH[kind]}"
    for name, relation in COMPARISONS.items():
        for suffix in ("", "u"):
            got = run(f"setp.{name}{suffix}.{kind} %d0, %a0, %a1;", "pred", [register] * 2, columns)
            for row, result in zip(rows, got, strict=True):
                a, b = (decode(x, kind) for x in row)
                nan = math.isnan(a) or math.isnan(b)
                assert bool(result) == (suffix == "u" if nan else relation(a, b)), f"{name}{suffix} of {a}, {b}"
    for name in ("num", "nan"):
        got = run(f"setp.{name}.{kind} %d0, %a0, %a1;", "pred", [register] * 2, columns)
        for row, result in zip(rows, got, strict=True):
            assert bool(result) == (any(math.isnan(decode(x, kind)) for x in row) == (name == "nan"))


@pytest.mark.parametrize(("kind", "torch_type"), [("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)])
@settings(max_examples=8, deadline=None)
@given(rows=rows_of("f32", 2))
def test_float8(kind: str, torch_type: torch.dtype, rows: list[tuple[int, ...]]) -> None:
    """Two float32 to two codes, saturating; and back by way of float16."""
    a, b = (torch.tensor(np.array(c, np.uint32).view(np.float32)) for c in zip(*rows, strict=True))
    largest = torch.finfo(torch_type).max
    want = [
        v.nan_to_num(nan=float("nan"), posinf=largest, neginf=-largest).clamp(-largest, largest).to(torch_type)
        for v in (a, b)
    ]
    got = run(f"cvt.rn.satfinite.{kind}x2.f32 %d0, %a0, %a1;", "b16", ["b32"] * 2, list(zip(*rows, strict=True)))
    for part, tensor in ((got >> 8, want[0]), (got & 255, want[1])):
        have = torch.tensor(part.astype(np.uint8)).view(torch_type).float()
        torch.testing.assert_close(have, tensor.float(), rtol=0, atol=0, equal_nan=True)
    wide = run(f"cvt.rn.f16x2.{kind}x2 %d0, %a0;", "b32", ["b16"], [got])
    low = torch.tensor((wide & 0xFFFF).astype(np.uint16).view(np.float16).astype(np.float32))
    torch.testing.assert_close(low, want[1].float(), rtol=0, atol=0, equal_nan=True)


@settings(max_examples=10, deadline=None)
@given(rows=rows_of("f32", 1))
def test_tf32(rows: list[tuple[int, ...]]) -> None:
    """rna: to 11 digits, ties away from zero; the low 13 bits are 0."""
    got = run("cvt.rna.tf32.f32 %d0, %a0;", "b32", ["b32"], list(zip(*rows, strict=True)))
    for (bits,), result in zip(rows, got, strict=True):
        if bits & 0x7F800000 != 0x7F800000:
            assert int(result) == (bits + 0x1000) & 0xFFFFE000


@pytest.mark.parametrize(
    ("name", "function", "relative", "absolute"),
    [
        ("ex2.approx", np.exp2, 3e-7, 0),
        ("lg2.approx", np.log2, 3e-7, 1e-7),
        ("tanh.approx", np.tanh, 2.0**-11, 0),
        ("sqrt.approx", np.sqrt, 3e-7, 0),
        ("rcp.approx", np.reciprocal, 3e-7, 0),
        ("sin.approx", np.sin, 0, 3e-6),
        ("cos.approx", np.cos, 0, 3e-6),
        ("rsqrt.approx", lambda x: 1 / np.sqrt(x), 3e-7, 0),
    ],
)
def test_approximations(name: str, function: Callable[[Any], Any], relative: float, absolute: float) -> None:
    """Within what CUDA's programming guide and the ISA say; sin and cos lose digits in the reduction of the angle."""
    values = np.linspace(0.01, 20, 200, dtype=np.float32)
    got = run(f"{name}.f32 %d0, %a0;", "b32", ["b32"], [values.view(np.uint32)]).view(np.float32)
    np.testing.assert_allclose(got, function(values.astype(np.float64)), rtol=relative, atol=absolute)


def test_flush_and_saturate() -> None:
    small = encode_many([2.0**-130, -(2.0**-130), 2.0**-126, 1.5, -3.0, NAN], "f32")
    flushed = run("mul.ftz.f32 %d0, %a0, 0f3F800000;", "b32", ["b32"], [small])
    assert [decode(int(b), "f32") for b in flushed[:3]] == [0.0, -0.0, 2.0**-126]
    clamped = run("add.sat.f32 %d0, %a0, 0f00000000;", "b32", ["b32"], [small])
    assert [decode(int(b), "f32") for b in clamped[3:]] == [1.0, 0.0, 0.0]


def test_testp() -> None:
    values = encode_many([0.0, 1.0, INF, NAN, 2.0**-140], "f32")
    want = {
        "finite": [1, 1, 0, 0, 1],
        "infinite": [0, 0, 1, 0, 0],
        "number": [1, 1, 1, 0, 1],
        "notanumber": [0, 0, 0, 1, 0],
        "normal": [1, 1, 0, 0, 0],  # zero too: seen on an H200
        "subnormal": [0, 0, 0, 0, 1],
    }
    for name, expected in want.items():
        assert run(f"testp.{name}.f32 %d0, %a0;", "pred", ["b32"], [values]).tolist() == expected
