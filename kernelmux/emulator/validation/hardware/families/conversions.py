"""cvt between all types."""

from kernelmux.emulator.validation.hardware.model import InstructionCase, mixed, simple

INTEGERS, ROUNDED, FLOATS, NARROW = (
    "cvt: integer to integer",
    "cvt: integer to float and back",
    "cvt: float to float",
    "cvt: tf32 and fp8",
)
NAMES = [f"{sign}{width}" for width in (16, 32, 64) for sign in "su"]
DIRECTIONS = ("rn", "rz", "rm", "rp")


def _integers() -> list[InstructionCase]:
    cases = [simple(INTEGERS, f"cvt.{to}.{of}", of, 1, to) for of in NAMES for to in NAMES if of != to]
    cases += [
        simple(INTEGERS, f"cvt.sat.{to}.{of}", of, 1, to)
        for of in NAMES
        for to in NAMES
        if of != to and (of[0] != to[0] or of[1:] > to[1:]) and not (of[0] == "u" and to[1:] > of[1:])
    ]
    for to in ("s8", "u8"):
        for of in ("s32", "u32"):
            code = f"cvt.sat.{to}.{of} %x, %a0; cvt.{to[0]}32.{to} %d0, %x;"
            cases.append(InstructionCase(f"cvt.sat.{to}.{of}", INTEGERS, code, f"{to[0]}32", (of,)))
    cases += [mixed(INTEGERS, f"cvt.pack.sat.{t}.s32", "s32 s32", "b32") for t in ("u16", "s16")]
    return cases + [mixed(INTEGERS, f"cvt.pack.sat.{t}.s32.b32", "s32 s32 b32", "b32") for t in ("u8", "s8")]


def _rounded() -> list[InstructionCase]:
    cases = [
        simple(ROUNDED, f"cvt.{mode}.{to}.{of}", of, 1, to)
        for to in ("f16", "f32", "f64")
        for of in NAMES
        for mode in DIRECTIONS
    ]
    cases += [simple(ROUNDED, f"cvt.rn.bf16.{of}", of, 1, "bf16") for of in NAMES]
    cases += [
        simple(ROUNDED, f"cvt.{mode}i.{to}.{of}", of, 1, to)
        for of in ("f16", "f32", "f64")
        for to in NAMES
        for mode in DIRECTIONS
    ]
    cases += [simple(ROUNDED, f"cvt.rzi.ftz.{to}.f32", "f32", 1, to) for to in ("s32", "u64")]
    return cases + [simple(ROUNDED, f"cvt.rni.{to}.bf16", "bf16", 1, to) for to in NAMES]


def _floats() -> list[InstructionCase]:
    cases = []
    for of, to in (("f32", "f16"), ("f64", "f16"), ("f64", "f32")):
        cases += [simple(FLOATS, f"cvt.{mode}.{to}.{of}", of, 1, to) for mode in DIRECTIONS]
    cases += [simple(FLOATS, f"cvt.{more}f16.f32", "f32", 1, "f16") for more in ("rn.relu.", "rz.relu.", "rn.sat.")]
    cases += [simple(FLOATS, f"cvt.{mode}.bf16.f32", "f32", 1, "bf16") for mode in ("rn", "rz", "rn.relu", "rz.relu")]
    cases += [simple(FLOATS, f"cvt.{mode}.bf16.{of}", of, 1, "bf16") for mode in ("rn", "rz") for of in ("f16", "f64")]
    cases += [
        mixed(FLOATS, f"cvt.{mode}.{to}.f32", "f32 f32", to)
        for to in ("f16x2", "bf16x2")
        for mode in ("rn", "rz", "rn.relu", "rz.relu")
    ]
    cases += [
        simple(FLOATS, f"cvt.{to}.{of}", of, 1, to)
        for of, to in (("f16", "f32"), ("f16", "f64"), ("f32", "f64"), ("bf16", "f32"), ("bf16", "f64"))
    ]
    cases += [
        simple(FLOATS, f"cvt.{more}.f32.f32", "f32", 1, "f32")
        for more in ("rni", "rzi", "rmi", "rpi", "rni.ftz", "rpi.sat", "sat", "ftz", "ftz.sat")
    ]
    cases += [
        simple(FLOATS, f"cvt.{mode}.{t}.{t}", t, 1) for mode in ("rni", "rzi", "rmi", "rpi") for t in ("f16", "f64")
    ]
    cases += [simple(FLOATS, "cvt.ftz.f64.f32", "f32", 1, "f64"), simple(FLOATS, "cvt.rn.ftz.f32.f64", "f64", 1, "f32")]
    return cases + [simple(FLOATS, f"cvt.{more}f32.f16", "f16", 1, "f32") for more in ("ftz.", "sat.")]


def _narrow() -> list[InstructionCase]:
    cases = [
        simple(NARROW, f"cvt.{mode}.tf32.f32", "f32", 1, "f32") for mode in ("rna", "rn", "rz", "rn.relu", "rz.relu")
    ]
    for t in ("e4m3x2", "e5m2x2"):
        for relu in ("", ".relu"):
            cases.append(mixed(NARROW, f"cvt.rn.satfinite{relu}.{t}.f32", "f32 f32", t))
            cases.append(simple(NARROW, f"cvt.rn.satfinite{relu}.{t}.f16x2", "f16x2", 1, t))
            cases.append(simple(NARROW, f"cvt.rn{relu}.f16x2.{t}", t, 1, "f16x2"))
    return cases


CASES = (*_integers(), *_rounded(), *_floats(), *_narrow())
