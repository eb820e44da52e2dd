"""Arithmetic of float32 and float64, and comparisons."""

from dataclasses import replace

from kernelmux.emulator.validation.hardware.model import InstructionCase, mixed, simple

F32, F64, DIVISION, COMPARISONS = "fp32 add, mul, fma", "fp64", "fp32 div, rcp, sqrt, rounded", "comparison, choice"
ROUNDINGS = (".rn", ".rz", ".rm", ".rp")
FLOATS = ("f32", "f64", "f16", "bf16")
ORDERED = ("eq", "ne", "lt", "le", "gt", "ge")
UNORDERED = ("equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")


def fma(family: str, opcode: str, kind: str) -> InstructionCase:
    """A fused product and sum, with operands whose sum cancels."""
    return replace(simple(family, opcode, kind, 3), cancel=True)


def _float32() -> list[InstructionCase]:
    cases = []
    for rounding in ROUNDINGS:
        for more in ("", ".ftz", ".sat", ".ftz.sat"):
            cases += [simple(F32, f"{op}{rounding}{more}.f32", "f32", 2) for op in ("add", "sub", "mul")]
            cases.append(fma(F32, f"fma{rounding}{more}.f32", "f32"))
    for more in ("", ".ftz"):
        cases += [simple(F32, f"{op}{more}.f32", "f32", 1) for op in ("neg", "abs")]
        for nan in ("", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs"):
            cases += [simple(F32, f"{op}{more}{nan}.f32", "f32", 2) for op in ("min", "max")]
    cases.append(
        InstructionCase(
            "fma.rn.f32 chain", F32, "mov.b32 %d0, %a2;" + "fma.rn.f32 %d0, %d0, %a0, %a1;" * 24, "f32", ("f32",) * 3
        )
    )
    return cases


def _divisions() -> list[InstructionCase]:
    cases = []
    for rounding in ROUNDINGS:
        for more in ("", ".ftz"):
            cases.append(simple(DIVISION, f"div{rounding}{more}.f32", "f32", 2))
            cases += [simple(DIVISION, f"{op}{rounding}{more}.f32", "f32", 1) for op in ("rcp", "sqrt")]
    return cases


def _float64() -> list[InstructionCase]:
    cases = [simple(F64, f"{op}.f64", "f64", 2) for op in ("min", "max")]
    cases += [simple(F64, f"{op}.f64", "f64", 1) for op in ("neg", "abs")]
    for rounding in ROUNDINGS:
        cases += [simple(F64, f"{op}{rounding}.f64", "f64", 2) for op in ("add", "sub", "mul", "div")]
        cases.append(fma(F64, f"fma{rounding}.f64", "f64"))
        cases += [simple(F64, f"{op}{rounding}.f64", "f64", 1) for op in ("rcp", "sqrt")]
    return cases


def _comparisons() -> list[InstructionCase]:
    integers = [f"{sign}{width}" for sign in "su" for width in (16, 32, 64)]
    cases = [simple(COMPARISONS, f"setp.{how}.{t}", t, 2, "pred") for t in integers for how in ORDERED]
    cases += [
        simple(COMPARISONS, f"setp.{how}.{t}", t, 2, "pred") for t in ("u32", "u64") for how in ("lo", "ls", "hi", "hs")
    ]
    cases += [simple(COMPARISONS, f"setp.{how}.{t}", t, 2, "pred") for t in FLOATS for how in (*ORDERED, *UNORDERED)]
    cases += [simple(COMPARISONS, f"setp.{how}.ftz.f32", "f32", 2, "pred") for how in ("eq", "lt", "geu")]
    cases += [mixed(COMPARISONS, f"setp.lt.{op}.f32", "f32 f32 pred", "pred") for op in ("and", "or", "xor")]
    cases += [
        simple(COMPARISONS, f"set.{how}.{d}.f32", "f32", 2, d) for how in ("lt", "neu") for d in ("u32", "s32", "f32")
    ]
    cases += [mixed(COMPARISONS, f"selp.b{w}", f"b{w} b{w} pred", f"b{w}") for w in (16, 32, 64)]
    cases += [mixed(COMPARISONS, f"slct.{t}.s32", f"{t} {t} s32", t) for t in ("u32", "s64", "f32", "f64")]
    cases += [mixed(COMPARISONS, f"slct{more}.b32.f32", "b32 b32 f32", "b32") for more in ("", ".ftz")]
    cases += [
        simple(COMPARISONS, f"testp.{what}.{t}", t, 1, "pred")
        for t in ("f32", "f64")
        for what in ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    ]
    return cases + [simple(COMPARISONS, f"copysign.{t}", t, 2) for t in ("f32", "f64")]


CASES = (*_float32(), *_divisions(), *_float64(), *_comparisons())
