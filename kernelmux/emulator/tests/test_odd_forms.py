"""Rare modifiers of common instructions, against definitions in Python's integers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernelmux.emulator import EmulatorError
from kernelmux.emulator.arithmetic.floats import from_bf16, to_bf16
from kernelmux.emulator.tests.single import run

EDGES = {
    16: [0, 1, 2, 5, 0x7FFF, 0x8000, 0xFFFF, 0x1234],
    32: [0, 1, 2, 31, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x12345678],
}
EDGES[64] = [0, 1, 2, 0x7FFFFFFFFFFFFFFF, 1 << 63, (1 << 64) - 1, 0x123456789ABCDEF0, 0xFFFFFFFF00000000]


def values(bits: int, columns: int, seed: int = 0) -> list[list[int]]:
    """Columns of numbers: all edges, and random ones."""
    random = np.random.default_rng(seed)
    rows = [
        [int(v) for v in random.integers(0, 1 << bits, columns, np.uint64, endpoint=bits == 64 and False)]
        if bits < 64
        else [int(v) for v in random.integers(0, 2**64 - 1, columns, np.uint64)]
        for _ in range(200)
    ]
    rows += [
        [int(random.choice(EDGES[bits])) if bits < 64 else EDGES[64][random.integers(8)] for _ in range(columns)]
        for _ in range(200)
    ]
    return [list(column) for column in zip(*rows, strict=True)]


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> bits - 1 & 1 else value


def clamp(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)


# --- products -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_upper_halves(kind: str) -> None:
    bits = int(kind[1:])
    number: Callable[[int], int] = (lambda v: signed(v, bits)) if kind[0] == "s" else (lambda v: v)
    columns = values(bits, 3)
    register = f"b{bits}"
    got = run(f"mad.hi.{kind} %d0, %a0, %a1, %a2;", register, [register] * 3, columns)
    want = [((number(a) * number(b) >> bits) + c) % (1 << bits) for a, b, c in zip(*columns, strict=True)]
    assert got.tolist() == want


@pytest.mark.parametrize(("kind", "bits"), [("u32", 32), ("s32", 32), ("u64", 64), ("s64", 64)])
def test_a_chain_of_carries(kind: str, bits: int) -> None:
    """a * b + (c1, c0) in double width, and the carry out of it; mad.lo.cc, madc.hi.cc, addc."""
    columns = values(bits, 4, 1)
    register, whole = f"b{bits}", 1 << 2 * bits
    chain = f"mad.lo.cc.{kind} %lo, %a0, %a1, %a2; madc.hi.cc.{kind} %hi, %a0, %a1, %a3; addc.{kind} %d0, 0, 0;"
    head = f".reg .{register} %lo, %hi;"
    number: Callable[[int], int] = (lambda v: signed(v, bits)) if kind[0] == "s" else (lambda v: v)
    exact = [(number(a) * number(b) % whole) + (d << bits | c) for a, b, c, d in zip(*columns, strict=True)]
    for code, want in (
        (chain, [v >> 2 * bits for v in exact]),
        (chain + "mov.b" + str(bits) + " %d0, %hi;", [v >> bits & (1 << bits) - 1 for v in exact]),
        (chain + "mov.b" + str(bits) + " %d0, %lo;", [v & (1 << bits) - 1 for v in exact]),
    ):
        assert run(head + code, register, [register] * 4, columns).tolist() == want


def test_mad_hi_cc_alone() -> None:
    columns = values(64, 3, 2)
    code = "mad.hi.cc.u64 %d1, %a0, %a1, %a2; addc.u64 %d0, 0, 0;"
    want = [(a * b >> 64) + c >> 64 for a, b, c in zip(*columns, strict=True)]
    assert run(code, "b64", ["b64"] * 3, columns).tolist() == want


SATURATING: list[tuple[str, Callable[..., int]]] = [
    ("mad.hi.sat.s32", lambda a, b, c: (a * b >> 32) + c),
    ("mad24.hi.sat.s32", lambda a, b, c: (signed(a & 0xFFFFFF, 24) * signed(b & 0xFFFFFF, 24) >> 16) + c),
    ("add.sat.s32", lambda a, b, c: a + b),
    ("sub.sat.s32", lambda a, b, c: a - b),
]


@pytest.mark.parametrize(("opcode", "exact"), SATURATING)
def test_saturating_sums(opcode: str, exact: Callable[..., int]) -> None:
    columns = values(32, 3, 3)
    operands = "%a0, %a1, %a2" if opcode.startswith("mad") else "%a0, %a1"
    got = run(f"{opcode} %d0, {operands};", "b32", ["b32"] * 3, columns).view(np.int32)
    want = [clamp(exact(*(signed(v, 32) for v in row)), -(2**31), 2**31 - 1) for row in zip(*columns, strict=True)]
    assert got.tolist() == want


# --- bits -----------------------------------------------------------------------------------------------------


def truth(table: int, a: int, b: int, c: int) -> int:
    return sum((table >> (4 * (a >> i & 1) + 2 * (b >> i & 1) + (c >> i & 1)) & 1) << i for i in range(32))


@pytest.mark.parametrize("table", [0x00, 0x80, 0xE8, 0x96, 0xFF])
@pytest.mark.parametrize("symbol", ["or", "and"])
@pytest.mark.parametrize("form", ["%d0|%p", "_|%p"])
def test_lop3_with_a_predicate(table: int, symbol: str, form: str) -> None:
    columns = [*values(32, 3, 4), [i & 1 for i in range(400)]]
    columns[0][:8] = columns[1][:8] = columns[2][:8] = [0] * 8
    target = form.replace("%d0", "%u").replace("%p", "%d0")
    code = f"lop3.{symbol}.b32 {target}, %a0, %a1, %a2, {table}, %a3;"
    got = run(".reg .b32 %u;" + code, "pred", ["b32", "b32", "b32", "pred"], columns)
    rows = zip(*columns, strict=True)
    combine: Callable[[bool, bool], bool] = (lambda x, y: x or y) if symbol == "or" else (lambda x, y: x and y)
    assert got.tolist() == [int(combine(truth(table, a, b, c) != 0, bool(q))) for a, b, c, q in rows]


def test_lop3_gives_its_value_too() -> None:
    columns = [*values(32, 3, 5), [i & 1 for i in range(400)]]
    got = run("lop3.and.b32 %d0|%p, %a0, %a1, %a2, 0x96, %a3;", "b32", ["b32", "b32", "b32", "pred"], columns)
    assert got.tolist() == [a ^ b ^ c for a, b, c, _ in zip(*columns, strict=True)]


def extended(value: int, length: int, kind: str, clamped: bool) -> int:
    length = min(length, 32) if clamped else length % 32
    field = value & (1 << length) - 1
    return (signed(field, length) if kind == "s32" and length else field) % (1 << 32)


@pytest.mark.parametrize("kind", ["u32", "s32"])
@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_szext(kind: str, mode: str) -> None:
    value, length = values(32, 1, 6)[0], [i % 40 for i in range(400)]
    got = run(f"szext.{mode}.{kind} %d0, %a0, %a1;", "b32", ["b32", "b32"], [value, length])
    assert got.tolist() == [extended(v, n, kind, mode == "clamp") for v, n in zip(value, length, strict=True)]


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_bmsk(mode: str) -> None:
    start, length = [i % 37 for i in range(400)], [i * 7 % 41 for i in range(400)]
    got = run(f"bmsk.{mode}.b32 %d0, %a0, %a1;", "b32", ["b32", "b32"], [start, length])

    def mask(a: int, b: int) -> int:
        a, b = (a, min(b, 32)) if mode == "clamp" else (a % 32, b % 32)
        return (((1 << b) - 1) << a if a < 32 else 0) % (1 << 32)

    assert got.tolist() == [mask(a, b) for a, b in zip(start, length, strict=True)]


MODES: dict[str, Callable[[int, int], int]] = {  # which of the eight bytes goes to place i when the choice is c
    "f4e": lambda c, i: c + i,
    "b4e": lambda c, i: (c - i) % 8,
    "rc8": lambda c, i: c,
    "ecl": lambda c, i: max(c, i),
    "ecr": lambda c, i: min(c, i),
    "rc16": lambda c, i: 2 * (c % 2) + i % 2,
}


@pytest.mark.parametrize("mode", MODES)
def test_modes_of_prmt(mode: str) -> None:
    a, b = values(32, 2, 7)
    choice = [i % 9 for i in range(400)]
    got = run(f"prmt.b32.{mode} %d0, %a0, %a1, %a2;", "b32", ["b32"] * 3, [a, b, choice])

    def permuted(x: int, y: int, c: int) -> int:
        whole = (x | y << 32).to_bytes(8, "little")
        return int.from_bytes(bytes(whole[MODES[mode](c & 3, i)] for i in range(4)), "little")

    assert got.tolist() == [permuted(*row) for row in zip(a, b, choice, strict=True)]


@pytest.mark.parametrize("kind", ["u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2"])
def test_cvt_pack(kind: str) -> None:
    a, b, c = values(32, 3, 8)
    a[:100], b[:100] = ([(v % 40 - 20) % (1 << 32) for v in x[:100]] for x in (a, b))
    bits = int(kind[1:])
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)
    third = "" if bits == 16 else ".b32"
    got = run(f"cvt.pack.sat.{kind}.s32{third} %d0, %a0, %a1{', %a2' if third else ''};", "b32", ["b32"] * 3, [a, b, c])

    def packed(x: int, y: int, z: int) -> int:
        parts = [clamp(signed(v, 32), low, high) % (1 << bits) for v in (x, y)]
        return (parts[1] | parts[0] << bits | (z << 2 * bits if third else 0)) % (1 << 32)

    assert got.tolist() == [packed(*row) for row in zip(a, b, c, strict=True)]


# --- several integers in a register -----------------------------------------------------------------------------

VIDEO: dict[str, Callable[[int, int], int]] = {
    "vadd": lambda a, b: a + b,
    "vsub": lambda a, b: a - b,
    "vavrg": lambda a, b: (a + b + (1 if a + b >= 0 else 0)) >> 1,
    "vabsdiff": lambda a, b: abs(a - b),
    "vmin": min,
    "vmax": max,
    "vset.lt": lambda a, b: int(a < b),
    "vset.ne": lambda a, b: int(a != b),
}


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", VIDEO)
@pytest.mark.parametrize("kinds", [("u32", "u32", "u32"), ("s32", "s32", "s32"), ("s32", "u32", "s32")])
@pytest.mark.parametrize("suffix", ["", ".sat", ".add"])
def test_video_instructions(name: str, count: int, kinds: tuple[str, ...], suffix: str) -> None:
    if name.startswith("vset"):
        opcode = f"vset{count}.{kinds[1]}.{kinds[2]}.{name[5:]}{suffix.replace('.sat', '')}"
    else:
        opcode = f"{name}{count}.{'.'.join(kinds)}{suffix}"
    bits, columns = 32 // count, values(32, 3, 9)
    got = run(f"{opcode} %d0, %a0, %a1, %a2;", "b32", ["b32"] * 3, columns)

    def expected(a: int, b: int, c: int) -> int:
        results = []
        for i in range(count):
            fields = [v >> bits * i & (1 << bits) - 1 for v in (a, b)]
            x, y = (signed(f, bits) if kind == "s32" else f for f, kind in zip(fields, kinds[1:], strict=True))
            results.append(VIDEO[name](x, y))
        if suffix == ".add":
            return (c + sum(results)) % (1 << 32)
        if suffix == ".sat" and not name.startswith("vset"):
            low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kinds[0] == "s32" else (0, (1 << bits) - 1)
            results = [clamp(r, low, high) for r in results]
        return sum(r % (1 << bits) << bits * i for i, r in enumerate(results))

    assert got.tolist() == [expected(*row) for row in zip(*columns, strict=True)]


@pytest.mark.parametrize("opcode", ["max.relu.s16x2", "min.relu.s16x2", "max.s16x2.relu", "max.relu.s32", "min.u16x2"])
def test_extremes_of_pairs(opcode: str) -> None:
    a, b = values(32, 2, 10)
    choose: Callable[[int, int], int] = max if opcode.startswith("max") else min
    got = run(f"{opcode} %d0, %a0, %a1;", "b32", ["b32", "b32"], [a, b])
    width = 32 if "s32" in opcode else 16

    def half(x: int, y: int) -> int:
        x, y = (v if "u16" in opcode else signed(v, width) for v in (x, y))
        return max(choose(x, y), 0) % (1 << width) if "relu" in opcode else choose(x, y)

    def expected(x: int, y: int) -> int:
        low, high = (1 << width) - 1, 16 if width == 16 else 32
        return half(x & low, y & low) | (half(x >> 16, y >> 16) << 16 if high == 16 else 0)

    assert got.tolist() == [expected(*row) for row in zip(a, b, strict=True)]


# --- set ------------------------------------------------------------------------------------------------------

FLOATS = [0.0, -0.0, 1.0, -1.0, 2.5, np.nan, np.inf, -np.inf]
RELATIONS: dict[str, Callable[[float, float], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a < b or a > b,
    "lt": lambda a, b: a < b,
    "ge": lambda a, b: a >= b,
    "ltu": lambda a, b: not a >= b,
    "num": lambda a, b: a == a and b == b,
    "nan": lambda a, b: a != a or b != b,
}
COMBINE: dict[str, Callable[[bool, bool], bool]] = {
    "and": lambda p, q: p and q,
    "or": lambda p, q: p or q,
    "xor": lambda p, q: p != q,
}
ONE = {
    "f16": 0x3C00,
    "bf16": 0x3F80,
    "f32": 0x3F800000,
    "u16": 0xFFFF,
    "s16": 0xFFFF,
    "u32": 0xFFFFFFFF,
    "s32": 0xFFFFFFFF,
}


def encoded(kind: str, numbers: Any) -> np.ndarray:
    array = np.array(numbers, np.float32)
    return (
        to_bf16(array)
        if kind == "bf16"
        else array.astype({"f16": "f2", "f32": "f4"}[kind]).view({"f16": "u2", "f32": "u4"}[kind])
    )


PAIRS = [(a, b) for a in FLOATS for b in FLOATS]


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    ("result", "source"),
    [
        *((r, "f16") for r in ("f16", "u16", "s16", "u32", "s32")),
        *((r, "bf16") for r in ("bf16", "u16", "s16", "u32", "s32")),
        *((r, "f32") for r in ("f32", "u32", "s32")),
    ],
)
def test_set(relation: str, result: str, source: str) -> None:
    a, b = (encoded(source, column) for column in zip(*PAIRS, strict=True))
    width = {"f16": "b16", "bf16": "b16", "f32": "b32"}[source]
    target = "b16" if result.endswith("16") else "b32"
    flags = [i % 3 == 0 for i in range(len(PAIRS))]
    want = [RELATIONS[relation](x, y) for x, y in PAIRS]
    got = run(f"set.{relation}.{result}.{source} %d0, %a0, %a1;", target, [width, width], [a, b])
    assert got.tolist() == [ONE[result] * w for w in want]
    for symbol, combine in COMBINE.items():
        code = f"set.{relation}.{symbol}.{result}.{source} %d0, %a0, %a1, %a2;"
        got = run(code, target, [width, width, "pred"], [a, b, flags])
        assert got.tolist() == [ONE[result] * combine(w, q) for w, q in zip(want, flags, strict=True)]


@pytest.mark.parametrize("relation", ["eq", "lt", "geu"])
@pytest.mark.parametrize(
    ("result", "source"), [("f16x2", "f16x2"), ("u32", "f16x2"), ("bf16x2", "bf16x2"), ("s32", "bf16x2")]
)
def test_set_of_pairs(relation: str, result: str, source: str) -> None:
    relations = RELATIONS | {"geu": lambda a, b: not a < b}
    low, high = (encoded(source[:-2], column).astype(np.uint32) for column in zip(*PAIRS, strict=True))
    words = [low | high << 16, high | low << 16]  # compares a with b, and b with a
    one = ONE[result[:-2]] if result.endswith("x2") else 0xFFFF
    want = [one * relations[relation](a, b) | one * relations[relation](b, a) << 16 for a, b in PAIRS]
    assert run(f"set.{relation}.{result}.{source} %d0, %a0, %a1;", "b32", ["b32", "b32"], words).tolist() == want
    flags = [i % 2 for i in range(len(PAIRS))]
    got = run(
        f"set.{relation}.and.{result}.{source} %d0, %a0, %a1, %a2;", "b32", ["b32", "b32", "pred"], [*words, flags]
    )
    assert got.tolist() == [w if q else 0 for w, q in zip(want, flags, strict=True)]


# --- what there is not -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["cvt.pack.sat.u8.s32 %d0, %a0, %a1;", "lop3.b32 %d0, %a0, %a1, %a2, %a0;"])
def test_forms_that_the_isa_lacks(code: str) -> None:
    with pytest.raises(EmulatorError) as raised:
        run(code, "b32", ["b32"] * 3, [[1]] * 3)
    assert raised.value.kind == "unsupported"


def test_bfloat16_survives_the_tests_own_encoding() -> None:
    assert np.array_equal(from_bf16(encoded("bf16", FLOATS)), np.array(FLOATS, np.float32), equal_nan=True)
