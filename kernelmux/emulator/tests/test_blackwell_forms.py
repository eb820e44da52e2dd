"""Arithmetic that sm_100 brought: pairs of float32, three operands, sums of mixed types, redux of floats."""

from typing import Any

import numpy as np
import pytest

from kernelmux.emulator import EmulatorError
from kernelmux.emulator.tests.single import kernel, run

NAN = 0x7FFFFFFF
EDGES = np.array(
    [
        0,
        0x80000000,
        1,
        0x80000001,
        0x007FFFFF,
        0x00800000,
        0x3F800000,
        0xBF800000,
        0x3F800001,
        0x7F7FFFFF,
        0x7F800000,
        0xFF800000,
        0x7FC00000,
        0xFFC00001,
        0x7F800001,
    ],
    np.uint32,
)


def numbers(columns: int, rows: int = 256) -> list[np.ndarray]:
    """Bits of float32: edges, and random ones."""
    random = np.random.default_rng(0)
    drawn = random.integers(0, 2**32, (columns, rows), np.uint32)
    edges = random.choice(EDGES, (columns, rows))
    return list(np.where(random.random((columns, rows)) < 0.5, edges, drawn))


def equal(got: Any, want: Any) -> None:
    """The same bits, and NaN where there is one."""
    got, want = np.asarray(got, np.uint32), np.asarray(want, np.uint32)
    nan = np.isnan(want.view(np.float32))
    assert np.array_equal(np.isnan(got.view(np.float32)), nan)
    assert np.array_equal(got[~nan], want[~nan])


@pytest.mark.parametrize(
    "opcode", ["add", "sub.rz.ftz", "add.rm", "mul", "mul.rp.ftz", "fma.rn", "fma.rz.ftz", "fma.rm"]
)
def test_a_pair_is_two_numbers(opcode: str) -> None:
    count = 3 if opcode.startswith("fma") else 2
    low, high = numbers(2 * count)[:count], numbers(2 * count)[count:]
    names = ", ".join(f"%a{i}" for i in range(count))
    both = [a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32) for a, b in zip(low, high, strict=True)]
    got = run(f"{opcode}.f32x2 %d0, {names};", "b64", ["b64"] * count, both)
    for part, halves in ((got & np.uint64(0xFFFFFFFF), low), (got >> np.uint64(32), high)):
        equal(part, run(f"{opcode}.f32 %d0, {names};", "b32", ["b32"] * count, halves))


@pytest.mark.parametrize("opcode", ["add", "mul"])
def test_the_nan_of_a_pair_is_that_of_the_hardware(opcode: str) -> None:
    """Compilers store pairs as 64 bits, which must be those of another thread with the same sum."""
    infinity, zero, negative_nan = 0x7F800000, 0, 0xFFC00000
    pairs = [negative_nan << 32 | infinity], [zero << 32 | (infinity ^ 0x80000000 if opcode == "add" else zero)]
    got = run(f"{opcode}.f32x2 %d0, %a0, %a1;", "b64", ["b64", "b64"], [np.array(p, np.uint64) for p in pairs])
    assert [hex(int(v)) for v in got] == [hex(NAN << 32 | NAN)]


@pytest.mark.parametrize("half", ["f16", "bf16"])
@pytest.mark.parametrize("opcode", ["add", "sub.rz", "add.sat", "fma.rn", "fma.rp"])
def test_operands_of_16_bits_are_widened(opcode: str, half: str) -> None:
    *short, last = numbers(3 if opcode.startswith("fma") else 2)
    halves = [a.astype(np.uint16) for a in short]
    wide = [
        (h.astype(np.uint32) << 16 if half == "bf16" else h.view(np.float16).astype(np.float32).view(np.uint32))
        for h in halves
    ]
    names = ", ".join(f"%a{i}" for i in range(len(halves) + 1))
    got = run(f"{opcode}.f32.{half} %d0, {names};", "b32", ["b16"] * len(halves) + ["b32"], [*halves, last])
    equal(got, run(f"{opcode}.f32 %d0, {names};", "b32", ["b32"] * (len(halves) + 1), [*wide, last]))


def best(values: list[int], form: str) -> int:
    """The minimum or maximum of float32 numbers as PTX defines it, in Python's integers."""
    if ".ftz" in form:
        values = [v & 0x80000000 if v & 0x7F800000 == 0 else v for v in values]
    if ".abs" in form:
        values = [v & 0x7FFFFFFF for v in values]
    known = [v for v in values if v & 0x7FFFFFFF <= 0x7F800000]
    if not known or (".NaN" in form and len(known) < len(values)):
        return NAN
    choose = max if form.startswith("max") else min
    return choose(known, key=lambda v: -(v & 0x7FFFFFFF) - 1 if v >> 31 else v)


@pytest.mark.parametrize("form", ["max", "min", "max.NaN", "min.ftz", "max.abs", "min.ftz.NaN.abs"])
def test_the_best_of_three(form: str) -> None:
    rows = numbers(3)
    got = run(f"{form}.f32 %d0, %a0, %a1, %a2;", "b32", ["b32"] * 3, rows)
    assert got.tolist() == [best([int(v) for v in row], form) for row in zip(*rows, strict=True)]


@pytest.mark.parametrize("code", ["add.f32 %d0, %a0, %a1, %a2;", "max.ftz.f32 %d0, %a0;", "mul.f32 %d0, %a0;"])
def test_another_number_of_operands_is_refused(code: str) -> None:
    with pytest.raises(EmulatorError, match="operands"):
        run(code, "b32", ["b32"] * 3, numbers(3, 32))


@pytest.mark.parametrize("form", ["max", "min", "max.abs", "min.abs.NaN", "max.NaN", "min.NaN"])
def test_the_best_of_a_warp(form: str) -> None:
    many = numbers(1, 64)[0]
    one = np.where((many & 0x7FFFFFFF) > 0x7F800000, 0x80000000, many).astype(np.uint32)
    one[40] = 0x7FC00000
    for values in (many, one):  # with NaN in both warps, and in one of them
        got = whole_warps(f"redux.sync.{form}.f32 %d0, %a0, -1;", values)
        for warp in (0, 32):
            want = best([int(v) for v in values[warp : warp + 32]], form)
            assert set(got[warp : warp + 32].tolist()) == {want}


def whole_warps(code: str, values: np.ndarray) -> np.ndarray:
    """The code on 64 lanes."""
    out = np.zeros(64, np.uint32)
    kernel(code, "b32", ("b32",)).launch(1, 64, [np.ascontiguousarray(values), out])
    return out


def test_lanes_with_another_mask_have_their_own_best() -> None:
    values = np.arange(64, dtype=np.float32).view(np.uint32)
    code = """
    .reg .b32 %m; and.b32 %m, %i, 1; setp.eq.u32 %p, %m, 0;
    selp.b32 %m, 0x55555555, 0xAAAAAAAA, %p;
    redux.sync.max.f32 %d0, %a0, %m;"""
    got = whole_warps(code, values).view(np.float32)
    assert got.tolist() == [30.0 + i % 2 + 32 * (i // 32) for i in range(64)]
    assert np.array_equal(whole_warps("redux.sync.min.f32 %d0, %a0, -1;", np.full(64, NAN, np.uint32)), [NAN] * 64)
