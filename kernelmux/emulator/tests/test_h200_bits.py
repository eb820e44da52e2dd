"""Bits that an H200 gave where other answers would have been plausible, in the emulator's way of spelling them.

A key names the instruction, then the registers of its result and of its operands.
"""

import numpy as np
import pytest

from kernelmux.emulator.tests.single import run

Rows = dict[tuple[int, ...], int]

FINDINGS: dict[str, dict[str, Rows]] = {
    "a remainder by zero is all ones": {
        "rem.s16 b16 b16 b16": {(0, 0): 0xFFFF, (0x5555, 0): 0xFFFF},
        "rem.u16 b16 b16 b16": {(0x20, 0): 0xFFFF, (0x5555, 0): 0xFFFF},
        "rem.s32 b32 b32 b32": {(0, 0): 0xFFFFFFFF, (2, 0): 0xFFFFFFFF},
        "rem.u32 b32 b32 b32": {(0x20, 0): 0xFFFFFFFF, (0x55555555, 0): 0xFFFFFFFF},
        "rem.s64 b64 b64 b64": {(0xFFFFFFFFFFFFF7DA, 0): 0xFFFFFFFFFFFFFFFF},
        "rem.u64 b64 b64 b64": {(0xFFF53527942361E7, 0): 0xFFFFFFFFFFFFFFFF},
    },
    "the sum after the upper half saturates": {
        "mad.hi.sat.s32 b32 b32 b32 b32": {
            (0x1, 0x80000001, 0x80000000): 0x80000000,
            (0xC0B90FF6, 0x84027BF4, 0x779C8D4D): 0x7FFFFFFF,
        },
    },
    "positions and lengths of 64-bit fields count whole": {
        "bfe.s64 b64 b64 b32 b32": {
            (1, 0, 0x80000000): 1,
            (1, 0x80000000, 7): 0,
            (0x8000000000000001, 0xFF, 0x80000000): 0xFFFFFFFFFFFFFFFF,
            (0x248F144B4A4E61, 0xA, 0xE368802): 0x923C512D293,
        },
        "bfe.u64 b64 b64 b32 b32": {(0xFFFFFFFFFFFFFFFF, 1, 0x80000000): 0x7FFFFFFFFFFFFFFF},
        "bfi.b64 b64 b64 b64 b32 b32": {
            (0, 1, 0x80000000, 0x40): 1,
            (0xE2F2A1AAD4B30FB6, 0x74C67, 0x846A30F, 0x18): 0x74C67,
        },
    },
    ".ftz makes zeros of what is too small before subnormal rounding": {
        "mul.rn.ftz.f32 b32 b32 b32": {
            (0x800000, 0x3F7FFFFF): 0,
            (0x3F7FFFFF, 0x80800000): 0x80000000,
            (0xBF7FFFFF, 0x80800000): 0,
        },
        "mul.rm.ftz.f32 b32 b32 b32": {(0x800000, 0xBF7FFFFF): 0x80000000},
        "mul.rp.ftz.f32 b32 b32 b32": {(0x800000, 0x3F7FFFFF): 0},
        "mul.rn.ftz.sat.f32 b32 b32 b32": {(0x800000, 0x3F7FFFFF): 0, (0x800000, 0xBF7FFFFF): 0},
        "fma.rn.ftz.f32 b32 b32 b32 b32": {
            (0x800000, 0x3F7FFFFF, 0x807FFFFF): 0,
            (0x800000, 0xBF7FFFFF, 0x80000001): 0x80000000,
            (0x800001, 0x800001, 0x80800000): 0x80800000,
        },
        "fma.rp.ftz.sat.f32 b32 b32 b32 b32": {(0x3F7FFFFF, 0x800000, 0x7FFFFF): 0},
        "div.rm.ftz.f32 b32 b32 b32": {(0x800000, 0xBF800001): 0x80000000},
        "div.rp.ftz.f32 b32 b32 b32": {(0x80800000, 0xBF800001): 0},
        "mul.rn.ftz.f16 b16 b16 b16": {(0x400, 0x3BFF): 0, (0x2455, 0x8E14): 0x8000, (1, 0x3C00): 0},
        "fma.rn.ftz.f16 b16 b16 b16 b16": {
            (0x401, 0x401, 0x8400): 0x8400,
            (0x8400, 0x400, 0x400): 0x400,
            (0, 0, 0x83FF): 0,
        },
        "fma.rn.ftz.relu.f16 b16 b16 b16 b16": {(0, 0x3FF, 1): 0, (0xBC01, 0x8400, 1): 0x401},
        "fma.rn.ftz.sat.f16x2 b32 b32 b32 b32": {(0x8042EC70, 0x4D8937B0, 0x26F244C0): 0x26F20000},
        "add.rn.ftz.f16 b16 b16 b16": {(0, 1): 0, (0x8001, 0x8000): 0x8000, (0x27CE, 0x24B): 0x27CE},
        "sub.rn.ftz.sat.f16 b16 b16 b16": {(0, 0x8001): 0, (0x401, 0x83FF): 0x401},
        "min.ftz.f16 b16 b16 b16": {(0, 0x8001): 0x8000, (0x4F2D, 0x8305): 0x8000},
        "max.ftz.f16 b16 b16 b16": {(0, 1): 0, (0xC1D6, 0x7F): 0},
        "cvt.rn.ftz.f32.f64 b32 b64": {(0x36B99B7AB93D40D4,): 0, (0xB718D17BEEADB61D,): 0x80000000},
    },
    ".ftz of comparisons": {
        "setp.eq.ftz.f32 pred b32 b32": {(0, 1): 1, (0x807FFFFF, 0x80000001): 1},
        "setp.lt.ftz.f32 pred b32 b32": {(0, 1): 0, (0x80000001, 1): 0},
        "setp.geu.ftz.f32 pred b32 b32": {(0, 1): 1, (0x80000001, 1): 1},
        "slct.ftz.b32.f32 b32 b32 b32 b32": {(0x21, 0x20, 0x807FFFFF): 0x21, (0, 1, 0x807FFFFF): 0},
    },
    "zero is normal": {"testp.normal.f64 pred b64": {(0,): 1, (0x8000000000000000,): 1, (1,): 0}},
    "sums that vanish are -0 when rounded down": {
        "add.rm.f32 b32 b32 b32": {(0, 0x80000000): 0x80000000, (0x7F7FFFFF, 0xFF7FFFFF): 0x80000000, (0, 0): 0},
        "sub.rm.f32 b32 b32 b32": {(0, 0): 0x80000000, (0x7F7FFFFF, 0x7F7FFFFF): 0x80000000},
        "add.rm.ftz.f32 b32 b32 b32": {(0, 0x80000001): 0x80000000},
        "fma.rm.f32 b32 b32 b32 b32": {
            (0, 0x800000, 0x80000000): 0x80000000,
            (0xBF800000, 0xBF7FFFFF, 0xBF7FFFFF): 0x80000000,
        },
        "fma.rm.ftz.f32 b32 b32 b32 b32": {
            (0, 0, 0x807FFFFF): 0x80000000,
            (0x2BB85F, 0xBF51EEB0, 0x23DA49): 0x80000000,
        },
        "sub.rm.f64 b64 b64 b64": {(0, 0): 0x8000000000000000},
        "fma.rm.f64 b64 b64 b64 b64": {(0, 0x10000000000000, 0x8000000000000000): 0x8000000000000000},
    },
    "float64 in every direction": {
        "fma.rn.f64 b64 b64 b64 b64": {
            (0x3FF0000000000001, 0x7FEFFFFFFFFFFFFF, 0xFFF0000000000000): 0xFFF0000000000000,
            (0x75D5C10B63517017, 0xE86109A1356874AD, 0x7FF0000000000000): 0x7FF0000000000000,
        },
        "add.rz.f64 b64 b64 b64": {(0xBFE675A457F0E7E3, 0xAC12E0CD68B2FB8A): 0xBFE675A457F0E7E3},
        "sub.rm.f64 b64 b64 b64": {(0x2004C1EF35D003B1, 0x89CF5B1A1642F7B): 0x2004C1EF35D003B0},
        "mul.rp.f64 b64 b64 b64": {(0x3FBFBD91FD6C4E9C, 0x991318680A4C8107): 0x98E2F0C40E47F75C},
        "div.rz.f64 b64 b64 b64": {(0xC05870386DC6D732, 0xC0195A65B97C3072): 0x402ED86DA848539C},
        "fma.rz.f64 b64 b64 b64 b64": {
            (1, 1, 0x8010000000000001): 0x8010000000000000,
            (0x5488BEA4B4295520, 0x3FE85BBAAF686C99, 0x317602CD8EC1D15A): 0x5482D5EA074000DC,
        },
        "fma.rm.f64 b64 b64 b64 b64": {(0x9DC0E7491C035304, 0x3440D20F2FC9EF3, 0x3FB80A227EC7FFB7): 0x3FB80A227EC7FFB6},
        "fma.rp.f64 b64 b64 b64 b64": {(1, 1, 0x7FEFFFFFFFFFFFFF): 0x7FF0000000000000},
        "rcp.rp.f64 b64 b64": {(0xC0359BFB42F7C314,): 0xBFA7B1892CD7311B, (0,): 0x7FF0000000000000},
        "sqrt.rm.f64 b64 b64": {(0x407912283C358CB1,): 0x40340741FA2AA300},
    },
    ".xorsign.abs of 16-bit floats": {
        "min.xorsign.abs.f16 b16 b16 b16": {(0, 0x8001): 0x8000, (0x26EF, 0xED73): 0xA6EF},
        "max.xorsign.abs.bf16 b16 b16 b16": {(0xC114, 0xF4B9): 0x74B9, (0, 0x8000): 0x8000},
        "min.NaN.xorsign.abs.f16x2 b32 b32 b32": {
            (0xB7C3ACAA, 0x3118BB15): 0xB1182CAA,
            (0xFE000000, 0xFE000000): 0x7FFF0000,
        },
        "max.NaN.xorsign.abs.bf16x2 b32 b32 b32": {
            (0xFFC00000, 0x7FC08000): 0x7FFF8000,
            (0x36B1414B, 0xC1B54323): 0xC1B54323,
        },
    },
    "64-bit integers are rounded once": {
        "cvt.rz.f32.s64 b32 b64": {(0x7FFFFFFFFFFFFFFF,): 0x5EFFFFFF, (0x8000000000000001,): 0xDEFFFFFF},
        "cvt.rp.f32.u64 b32 b64": {(0x8000000000000001,): 0x5F000001},
        "cvt.rm.f64.u64 b64 b64": {(0xFFF6B99DB1345EF6,): 0x43EFFED733B6268B},
        "cvt.rp.f64.s64 b64 b64": {(0x122C9EB9A74B9030,): 0x43B22C9EB9A74B91},
        "cvt.rz.f64.s64 b64 b64": {(0xFFDE24959DC6F3D9,): 0xC340EDB5311C8613},
    },
    "NaN as an integer": {
        "cvt.rni.s64.f16 b64 b16": {(0x7C01,): 1 << 63, (0xFFFF,): 1 << 63},
        "cvt.rzi.u64.f32 b64 b32": {(0x7FC00000,): 1 << 63},
        "cvt.rzi.ftz.u64.f32 b64 b32": {(0xFFFC5EF5,): 1 << 63},
        "cvt.rni.s64.bf16 b64 b16": {(0x7F81,): 1 << 63},
        "cvt.rmi.s16.f64 b16 b64": {(0x7FF8000000000000,): 0x8000},
        "cvt.rpi.u32.f64 b32 b64": {(0x7FF6A298679D5335,): 0x80000000},
        "cvt.rni.s32.f32 b32 b32": {(0x7FC00000,): 0},
    },
    "the NaN of 16-bit floats has all bits set but the sign": {
        "cvt.rn.f16.f32 b16 b32": {(0x7FC00000,): 0x7FFF, (0xFFC00000,): 0x7FFF, (0x7F800001,): 0x7FFF},
        "cvt.rn.bf16.f32 b16 b32": {(0x7FC00000,): 0x7FFF, (0xFFC00000,): 0x7FFF, (0x7F800001,): 0x7FFF},
        "add.f16 b16 b16 b16": {(0x7E00, 0x3C00): 0x7FFF, (0xFC01, 0x3C00): 0x7FFF, (0x7C00, 0xFC00): 0x7FFF},
        "fma.rn.f16 b16 b16 b16 b16": {(0x7E00, 0x3C00, 0): 0x7FFF, (0x7C00, 0, 0x3C00): 0x7FFF},
        "add.bf16 b16 b16 b16": {(0x7FC0, 0x3F80): 0x7FFF, (0x7F80, 0xFF80): 0x7FFF},
    },
    "-0 and NaN in conversions": {
        "cvt.sat.f32.f16 b32 b16": {(0x8000,): 0, (0x7C01,): 0},
        "cvt.rn.relu.f16.f32 b16 b32": {(0x80000000,): 0, (0xFFC00000,): 0x7FFF},
        "cvt.rz.relu.bf16.f32 b16 b32": {(0x80000000,): 0},
        "cvt.rn.relu.bf16x2.f32 b32 b32 b32": {(0, 0x80000000): 0, (0xFFC00000, 0x80000000): 0x7FFF0000},
        "cvt.rz.relu.bf16x2.f32 b32 b32 b32": {(0, 0x80000000): 0},
        "cvt.rn.relu.tf32.f32 b32 b32": {(0x80000000,): 0, (0x7FC00000,): 0x7FFFE000},
        "cvt.rn.bf16.f16 b16 b16": {(0x7C01,): 0x7FFF, (0xFFFF,): 0x7FFF},
        "cvt.rz.bf16.f64 b16 b64": {(0xC07823E066E0CEB6,): 0xC3C1, (0x7FF2EDE8268B5B8E,): 0x7FD7},
        "cvt.rn.satfinite.e4m3x2.f32 b16 b32 b32": {(0, 0xFFC00000): 0x7F, (0x3C304D41, 0xFFBF6D37): 0x67F},
        "cvt.rn.satfinite.relu.e4m3x2.f16x2 b16 b32": {
            (0x3872FEAC,): 0x317F,
            (0x80007E00,): 0x7F,
            (0xFFE8C53C,): 0x7F00,
        },
        "cvt.rn.satfinite.relu.e5m2x2.f32 b16 b32 b32": {(0, 0x80000000): 0, (0xFFC00000, 0xFFC00000): 0x7F7F},
        "cvt.rn.relu.f16x2.e4m3x2 b32 b16": {(0x80,): 0, (0x807E,): 0x5F00, (0xFFFF,): 0x7FFF7FFF},
        "cvt.rn.relu.f16x2.e5m2x2 b32 b16": {(0x180,): 0x1000000, (0x807C,): 0x7C00},
    },
}
CASES = [pytest.param(key, rows, id=key.split()[0]) for group in FINDINGS.values() for key, rows in group.items()]


@pytest.mark.parametrize(("key", "rows"), CASES)
def test_bits(key: str, rows: Rows) -> None:
    opcode, result, *operands = key.split()
    names = ", ".join(f"%a{i}" for i in range(len(operands)))
    columns = [
        np.array(column, f"u{int(kind[1:]) // 8}")
        for kind, column in zip(operands, zip(*rows, strict=True), strict=True)
    ]
    got = run(f"{opcode} %d0, {names};", result, operands, columns)
    assert [hex(x) for x in got.tolist()] == [hex(x) for x in rows.values()]


PAIRS = {  # the same for both halves of a register, and for what else rounds to float16
    "cvt.rn.f16x2.f32 b32 b32 b32": {(0xFFC00000, 0x7F800001): 0x7FFF7FFF, (0, 0x7FC00000): 0x7FFF},
    "cvt.rn.satfinite.f16x2.f32 b32 b32 b32": {(0x7FC00000, 0x7F800000): 0x7FFF7BFF},
    "cvt.rn.f16.bf16 b16 b16": {(0xFF81,): 0x7FFF},
    "add.f16x2 b32 b32 b32": {(0x7E003C00, 0x3C003C00): 0x7FFF4000, (0x7C00FC00, 0xFC007C00): 0x7FFF7FFF},
    "sub.f16x2 b32 b32 b32": {(0x7C003C00, 0x7C003C00): 0x7FFF0000},
    "mul.rn.ftz.f16x2 b32 b32 b32": {(0x7C003C00, 0x00003C00): 0x7FFF3C00},
    "fma.rn.f16x2 b32 b32 b32 b32": {(0xFE003C00, 0x3C003C00, 0x00003C00): 0x7FFF4000},
    "neg.f16 b16 b16": {(0x7E01,): 0xFE01},  # moves a sign and computes nothing
}


@pytest.mark.parametrize(("key", "rows"), PAIRS.items(), ids=PAIRS)
def test_the_nan_of_float16_in_all_that_rounds_to_it(key: str, rows: Rows) -> None:
    test_bits(key, rows)
