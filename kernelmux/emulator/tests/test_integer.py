"""Integer instructions against Python's integers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmux.emulator.tests.single import run

EDGES = [
    0,
    1,
    2,
    5,
    31,
    32,
    33,
    63,
    64,
    255,
    256,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    0x12345678,
]
EDGES64 = [*EDGES, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 0x0123456789ABCDEF]


def words(bits: int) -> st.SearchStrategy[int]:
    edges = [e for e in EDGES64 if e < 1 << bits]
    return st.one_of(st.sampled_from(edges), st.integers(0, (1 << bits) - 1))


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def _divide(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _amount(number: int, bits: int) -> int:
    """Positions and lengths count by their low byte; in 64 bits they count whole, as on an H200."""
    return min(number, 64) if bits == 64 else number & 255


def _bfe(value: int, position: int, length: int, bits: int, sign: bool) -> int:
    position, length, top = _amount(position, bits), _amount(length, bits), bits - 1
    fill = (value >> min(position + length - 1, top)) & 1 if sign and length else 0
    taken = [(value >> (position + i)) & 1 if i < length and position + i <= top else fill for i in range(bits)]
    return sum(bit << i for i, bit in enumerate(taken))


def _bfi(a: int, b: int, position: int, length: int, bits: int) -> int:
    position, length = _amount(position, bits), _amount(length, bits)
    for i in range(length):
        if position + i < bits:
            b = b & ~(1 << position + i) | ((a >> i) & 1) << position + i if i < bits else b
    return b


def _prmt(a: int, b: int, choice: int) -> int:
    source = [(a | b << 32) >> 8 * i & 255 for i in range(8)]
    picked = [source[choice >> 4 * i & 7] for i in range(4)]
    return sum((255 * (p >> 7) if choice >> 4 * i & 8 else p) << 8 * i for i, p in enumerate(picked))


def _shift(value: int, amount: int, bits: int, left: bool) -> int:
    return 0 if left and amount >= bits else value << amount if left else value >> min(amount, 2 * bits)


def _dot(a: int, b: int, c: int, parts: int, sign: bool) -> int:
    width = 32 // parts
    take = [
        (signed(v >> width * i & (1 << width) - 1, width) if sign else v >> width * i & (1 << width) - 1)
        for v in (a,)
        for i in range(parts)
    ]
    byte = [signed(b >> 8 * i & 255, 8) if sign else b >> 8 * i & 255 for i in range(parts)]
    return sum(x * y for x, y in zip(take, byte, strict=True)) + c


# opcode, type of result, types of operands, definition on unsigned or ("s") signed values; results wrap
CASES: list[tuple[str, str, list[str], Callable[..., int]]] = [
    ("add.s32", "b32", ["b32"] * 2, lambda a, b: a + b),
    ("add.u64", "b64", ["b64"] * 2, lambda a, b: a + b),
    ("add.u16", "b16", ["b16"] * 2, lambda a, b: a + b),
    ("add.sat.s32", "b32", ["s32"] * 2, lambda a, b: max(-(2**31), min(2**31 - 1, a + b))),
    ("sub.s64", "b64", ["b64"] * 2, lambda a, b: a - b),
    ("mul.lo.s32", "b32", ["b32"] * 2, lambda a, b: a * b),
    ("mul.hi.u32", "b32", ["b32"] * 2, lambda a, b: a * b >> 32),
    ("mul.hi.s32", "b32", ["s32"] * 2, lambda a, b: a * b >> 32),
    ("mul.hi.u64", "b64", ["b64"] * 2, lambda a, b: a * b >> 64),
    ("mul.hi.s64", "b64", ["s64"] * 2, lambda a, b: a * b >> 64),
    ("mul.wide.u16", "b32", ["b16"] * 2, lambda a, b: a * b),
    ("mul.wide.s32", "b64", ["s32"] * 2, lambda a, b: a * b),
    ("mul24.lo.u32", "b32", ["b32"] * 2, lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF)),
    ("mul24.hi.u32", "b32", ["b32"] * 2, lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) >> 16),
    ("mad.lo.s32", "b32", ["b32"] * 3, lambda a, b, c: a * b + c),
    ("mad.hi.s32", "b32", ["s32"] * 3, lambda a, b, c: (a * b >> 32) + c),
    ("mad.hi.sat.s32", "b32", ["s32"] * 3, lambda a, b, c: max(-(2**31), min(2**31 - 1, (a * b >> 32) + c))),
    ("mad.wide.u32", "b64", ["b32", "b32", "b64"], lambda a, b, c: a * b + c),
    ("sad.s32", "b32", ["s32"] * 3, lambda a, b, c: abs(a - b) + c),
    ("div.u32", "b32", ["b32"] * 2, lambda a, b: a // b if b else 2**32 - 1),
    ("div.s32", "b32", ["s32"] * 2, lambda a, b: _divide(a, b) if b else -1),
    ("div.u64", "b64", ["b64"] * 2, lambda a, b: a // b if b else 2**64 - 1),
    ("rem.u32", "b32", ["b32"] * 2, lambda a, b: a % b if b else -1),
    ("rem.s32", "b32", ["s32"] * 2, lambda a, b: a - _divide(a, b) * b if b else -1),
    ("rem.s64", "b64", ["s64"] * 2, lambda a, b: a - _divide(a, b) * b if b else -1),
    ("abs.s32", "b32", ["s32"], abs),
    ("neg.s64", "b64", ["s64"], lambda a: -a),
    ("min.s32", "b32", ["s32"] * 2, min),
    ("max.u64", "b64", ["b64"] * 2, max),
    ("min.s16", "b16", ["s16"] * 2, min),
    ("and.b32", "b32", ["b32"] * 2, lambda a, b: a & b),
    ("xor.b64", "b64", ["b64"] * 2, lambda a, b: a ^ b),
    ("not.b32", "b32", ["b32"], lambda a: ~a),
    ("cnot.b32", "b32", ["b32"], lambda a: int(a == 0)),
    ("shl.b32", "b32", ["b32", "b32"], lambda a, s: _shift(a, s, 32, True)),
    ("shl.b64", "b64", ["b64", "b32"], lambda a, s: _shift(a, s, 64, True)),
    ("shr.u32", "b32", ["b32", "b32"], lambda a, s: _shift(a, s, 32, False)),
    ("shr.s32", "b32", ["s32", "b32"], lambda a, s: _shift(a, s, 32, False)),
    ("shr.s64", "b64", ["s64", "b32"], lambda a, s: _shift(a, s, 64, False)),
    ("shf.l.wrap.b32", "b32", ["b32"] * 3, lambda a, b, c: ((b << 32 | a) << (c & 31)) >> 32),
    ("shf.r.clamp.b32", "b32", ["b32"] * 3, lambda a, b, c: (b << 32 | a) >> min(c, 32)),
    ("bfe.u32", "b32", ["b32"] * 3, lambda a, p, n: _bfe(a, p, n, 32, False)),
    ("bfe.s32", "b32", ["b32"] * 3, lambda a, p, n: _bfe(a, p, n, 32, True)),
    ("bfe.u64", "b64", ["b64", "b32", "b32"], lambda a, p, n: _bfe(a, p, n, 64, False)),
    ("bfe.s64", "b64", ["b64", "b32", "b32"], lambda a, p, n: _bfe(a, p, n, 64, True)),
    ("bfi.b32", "b32", ["b32"] * 4, lambda a, b, p, n: _bfi(a, b, p, n, 32)),
    ("bfi.b64", "b64", ["b64", "b64", "b32", "b32"], lambda a, b, p, n: _bfi(a, b, p, n, 64)),
    ("prmt.b32", "b32", ["b32"] * 3, _prmt),
    ("popc.b32", "b32", ["b32"], int.bit_count),
    ("popc.b64", "b32", ["b64"], int.bit_count),
    ("clz.b32", "b32", ["b32"], lambda a: 32 - a.bit_length()),
    ("clz.b64", "b32", ["b64"], lambda a: 64 - a.bit_length()),
    ("brev.b32", "b32", ["b32"], lambda a: int(f"{a:032b}"[::-1], 2)),
    ("brev.b64", "b64", ["b64"], lambda a: int(f"{a:064b}"[::-1], 2)),
    ("bfind.u32", "b32", ["b32"], lambda a: a.bit_length() - 1),
    ("bfind.s64", "b32", ["s64"], lambda a: (~a if a < 0 else a).bit_length() - 1),
    ("bfind.shiftamt.u32", "b32", ["b32"], lambda a: 32 - a.bit_length() if a else -1),
    ("dp4a.s32.s32", "b32", ["b32"] * 3, lambda a, b, c: _dot(a, b, c, 4, True)),
    ("dp4a.u32.u32", "b32", ["b32"] * 3, lambda a, b, c: _dot(a, b, c, 4, False)),
    ("dp2a.lo.u32.u32", "b32", ["b32"] * 3, lambda a, b, c: _dot(a, b, c, 2, False)),
    ("cvt.u64.u32", "b64", ["b32"], lambda a: a),
    ("cvt.s64.s32", "b64", ["s32"], lambda a: a),
    ("cvt.s32.s8", "b32", ["b32"], lambda a: signed(a & 255, 8)),
    ("cvt.u16.u32", "b16", ["b32"], lambda a: a),
    ("cvt.sat.u8.s32", "b32", ["s32"], lambda a: max(0, min(255, a))),
    ("cvt.sat.s32.u32", "b32", ["b32"], lambda a: min(a, 2**31 - 1)),
    ("setp.lt.s32", "pred", ["s32"] * 2, lambda a, b: a < b),
    ("setp.hs.u32", "pred", ["b32"] * 2, lambda a, b: a >= b),
    ("setp.ne.b64", "pred", ["b64"] * 2, lambda a, b: a != b),
    ("selp.b32", "b32", ["b32", "b32", "pred"], lambda a, b, p: a if p else b),
    ("slct.u32.s32", "b32", ["b32", "b32", "s32"], lambda a, b, c: a if c >= 0 else b),
]


@pytest.mark.parametrize(("opcode", "result", "operands", "definition"), CASES, ids=[c[0] for c in CASES])
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_definition(opcode: str, result: str, operands: list[str], definition: Callable[..., int], data: Any) -> None:
    kinds = ["pred" if k == "pred" else f"b{k[1:]}" for k in operands]
    widths = [1 if k == "pred" else int(k[1:]) for k in kinds]
    rows = data.draw(st.lists(st.tuples(*(words(w) for w in widths)), min_size=1, max_size=40))
    names = ", ".join(["%d0", *(f"%a{i}" for i in range(len(operands)))])
    got = run(f"{opcode} {names};", result, kinds, [list(column) for column in zip(*rows, strict=True)])
    width = 1 if result == "pred" else int(result[1:])
    for row, value in zip(rows, got, strict=True):
        arguments = [signed(v, w) if k[0] == "s" else v for v, w, k in zip(row, widths, operands, strict=True)]
        assert int(value) == int(definition(*arguments)) & ((1 << width) - 1), f"{opcode} of {row}"


@settings(max_examples=40, deadline=None)
@given(table=st.integers(0, 255), values=st.lists(st.tuples(*[words(32)] * 3), min_size=1, max_size=8))
def test_lop3(table: int, values: list[tuple[int, int, int]]) -> None:
    got = run(f"lop3.b32 %d0, %a0, %a1, %a2, {table};", "b32", ["b32"] * 3, list(zip(*values, strict=True)))
    for (a, b, c), value in zip(values, got, strict=True):
        want = sum((table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1) << i for i in range(32))
        assert int(value) == want


@settings(max_examples=20, deadline=None)
@given(values=st.lists(st.tuples(*[words(32)] * 4), min_size=1, max_size=20))
def test_carry_makes_64_bits(values: list[tuple[int, int, int, int]]) -> None:
    """The upper half of a 64-bit sum and difference, built of 32-bit halves."""
    columns = list(zip(*values, strict=True))
    for opcode, sign in (("add", 1), ("sub", -1)):
        got = run(f"{opcode}.cc.u32 %d1, %a0, %a2; {opcode}c.u32 %d0, %a1, %a3;", "b32", ["b32"] * 4, columns)
        for (a, b, c, d), value in zip(values, got, strict=True):
            assert int(value) == ((b << 32 | a) + sign * (d << 32 | c)) >> 32 & 0xFFFFFFFF


def test_mad_with_carry() -> None:
    a, b, c, d = (np.array(v, np.uint32) for v in ([2**32 - 1, 7], [2**32 - 1, 9], [5, 2**32 - 1], [3, 4]))
    code = "mad.lo.cc.u32 %d1, %a0, %a1, %a2; madc.hi.u32 %d0, %a0, %a1, %a3;"
    got = run(code, "b32", ["b32"] * 4, [a, b, c, d])
    whole = [int(x) * int(y) + int(z) + (int(w) << 32) for x, y, z, w in zip(a, b, c, d, strict=True)]
    assert got.tolist() == [w >> 32 & 0xFFFFFFFF for w in whole]


@pytest.mark.parametrize(
    ("mask", "base", "offset", "want"),
    [(0b1011, 0, 2, 1), (0b1011, 0, 3, 3), (0b1011, 3, -2, 1), (0b100, 1, 0, 2**32 - 1)],
)
def test_fns(mask: int, base: int, offset: int, want: int) -> None:
    assert run("fns.b32 %d0, %a0, %a1, %a2;", "b32", ["b32"] * 3, [[mask], [base], [offset & 0xFFFFFFFF]])[0] == want
