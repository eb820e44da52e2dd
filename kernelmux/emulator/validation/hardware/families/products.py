"""Tensor cores."""

from itertools import product

from kernelmux.emulator.validation.hardware.matrices import MatrixCase

NUMBERS = ("whole", "normal", "positive", "wide", "extreme", "special")
DEPTH = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32}
SHORTER = {"f16": 8, "bf16": 8, "tf32": 4, "s8": 16, "u8": 16}
FAMILY = {
    "f16": "f16, bf16",
    "bf16": "f16, bf16",
    "tf32": "tf32",
    "e4m3": "fp8",
    "e5m2": "fp8",
    "s8": "int8",
    "u8": "int8",
}


def _case(wide: bool, k: int, a: str, b: str, d: str, numbers: str) -> MatrixCase:
    shape = f"m64n8k{k}" if wide else f"m16n8k{k}"
    opcode = "wgmma" if wide else "mma.sync"
    sums = "" if d in ("f32", "s32") else ", f16 sums"
    name, family = f"{opcode} {shape} {a} {b} {d} {numbers}", f"{opcode} {FAMILY[a]}{sums}"
    return MatrixCase(name, family, wide, shape, a, b, d, numbers)


def _cases() -> list[MatrixCase]:
    cases = []
    for wide in (False, True):
        for a in ("f16", "bf16", "tf32"):
            depths = [DEPTH[a]] if wide else [DEPTH[a], SHORTER[a]]
            cases += [_case(wide, k, a, a, "f32", numbers) for k, numbers in product(depths, NUMBERS)]
            if a == "f16":
                cases += [_case(wide, k, a, a, "f16", numbers) for k, numbers in product(depths, NUMBERS)]
        for a, b in product(("e4m3", "e5m2"), repeat=2):
            cases += [_case(wide, 32, a, b, "f32", numbers) for numbers in NUMBERS]
        for a, b in product(("s8", "u8"), repeat=2):
            cases += [_case(wide, k, a, b, "s32", "all") for k in ([32] if wide else [32, 16])]
    return cases


CASES = tuple(_cases())
