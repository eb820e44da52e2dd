"""Arithmetic of 16-bit floats, single and in pairs."""

from dataclasses import replace

from kernelmux.emulator.validation.hardware.model import InstructionCase, simple

FAMILY = "fp16 and bf16 arithmetic"


def _of(kind: str) -> list[InstructionCase]:
    ieee = kind.startswith("f")
    more = ("", ".ftz", ".sat", ".ftz.sat") if ieee else ("",)
    cases = [simple(FAMILY, f"{op}.rn{m}.{kind}", kind, 2) for op in ("add", "sub", "mul") for m in more]
    cases += [
        replace(simple(FAMILY, f"fma.rn{m}.{kind}", kind, 3), cancel=True)
        for m in (*more, ".relu", *((".ftz.relu",) if ieee else ()))
    ]
    cases += [
        simple(FAMILY, f"{op}{m}.{kind}", kind, 2)
        for op in ("min", "max")
        for m in ("", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs", *((".ftz",) if ieee else ()))
    ]
    cases += [simple(FAMILY, f"{op}.{kind}", kind, 1) for op in ("neg", "abs")]
    return cases


CASES = tuple(case for kind in ("f16", "f16x2", "bf16", "bf16x2") for case in _of(kind))
