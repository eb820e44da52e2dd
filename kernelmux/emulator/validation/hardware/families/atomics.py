"""atom and red; every thread at a place of its own, so that only the arithmetic counts."""

from kernelmux.emulator.validation.hardware.model import InstructionCase

GLOBAL, SHARED = "atomics in global memory", "atomics in shared memory"
INTEGERS = [(op, t) for op in ("min", "max") for t in ("s32", "u32", "s64", "u64")] + [
    ("add", "u32"),
    ("add", "s32"),
    ("add", "u64"),
    ("inc", "u32"),
    ("dec", "u32"),
    *((op, t) for op in ("and", "or", "xor", "exch") for t in ("b32", "b64")),
]
FLOATS = [("add", t) for t in ("f32", "f64", "noftz.f16", "noftz.f16x2", "noftz.bf16", "noftz.bf16x2")]


def _atom(op: str, kind: str, space: str) -> InstructionCase:
    operand = kind.removeprefix("noftz.")
    width = {"f16": 16, "bf16": 16, "f16x2": 32, "bf16x2": 32}.get(operand) or int(operand[1:])
    name = f"atom.{space}.{op}.{kind}"
    if space == "global":
        return InstructionCase(name, GLOBAL, f"{name} %d0, [%m], %a0;", operand, (operand,), operand)
    scratch = {16: "%h", 32: "%x", 64: "%X"}[width]
    code = f"ld.global.b{width} {scratch}, [%m]; st.shared.b{width} [%s], {scratch}; {name} %d0, [%s], %a0;"
    code += f"ld.shared.b{width} {scratch}, [%s]; st.global.b{width} [%m], {scratch};"
    return InstructionCase(name, SHARED, code, operand, (operand,), operand)


def _vector(op: str, kind: str) -> InstructionCase:
    """Two words at once."""
    name = f"atom.global.v2.{kind}.{op}.noftz"
    code = f"mov.b64 {{%x, %y}}, %a0; {name} {{%x, %y}}, [%m], {{%x, %y}}; mov.b64 %d0, {{%x, %y}};"
    wide = kind.replace("x2", "x4")
    return InstructionCase(name, GLOBAL, code, wide, (wide,), wide)


def _swaps() -> list[InstructionCase]:
    """Every third finds what it compares with."""

    def swap(width: int, space: str) -> InstructionCase:
        name, place = f"atom.{space}.cas.b{width}", "[%m]"
        scratch = {16: "%h", 32: "%x", 64: "%X"}[width]
        code = f"ld.global.b{width} {scratch}, [%m]; setp.lt.u32 %p, %lane, 11; @%p mov.b{width} %a0, {scratch};"
        return InstructionCase(
            name, GLOBAL, f"{code} {name} %d0, {place}, %a0, %a1;", f"b{width}", (f"b{width}",) * 2, f"b{width}"
        )

    return [swap(width, "global") for width in (16, 32, 64)]


def _reductions() -> list[InstructionCase]:
    """red gives nothing back; the result is what the memory holds after it."""
    kinds = [
        ("add", "f32"),
        ("add", "f64"),
        ("add", "noftz.f16x2"),
        ("add", "noftz.bf16x2"),
        ("max", "s32"),
        ("add", "u64"),
    ]
    cases = []
    for op, kind in kinds:
        operand = kind.removeprefix("noftz.")
        width = 32 if operand.endswith("x2") else int(operand[1:])
        code = f"red.global.{op}.{kind} [%m], %a0; ld.global.b{width} %d0, [%m];"
        cases.append(InstructionCase(f"red.global.{op}.{kind}", GLOBAL, code, operand, (operand,), operand))
    return cases


CASES = (
    *(_atom(op, kind, space) for space in ("global", "shared") for op, kind in (*INTEGERS, *FLOATS)),
    *(_vector(op, kind) for op in ("add", "min", "max") for kind in ("f16x2", "bf16x2")),
    *_swaps(),
    *_reductions(),
)
