"""Integer arithmetic, logic and bits."""

from kernelmux.emulator.validation.hardware.model import InstructionCase, mixed, simple

ARITHMETIC, BITS, CARRY = "integer arithmetic", "logic and bits", "carry chains"
WIDTHS = ("16", "32", "64")
SIGNS = [sign + width for width in WIDTHS for sign in "su"]


def _arithmetic() -> list[InstructionCase]:
    cases = [
        simple(ARITHMETIC, f"{op}.{t}", t, 2)
        for op in ("add", "sub", "mul.lo", "mul.hi", "min", "max", "div", "rem")
        for t in SIGNS
    ]
    cases += [simple(ARITHMETIC, f"{op}.{t}", t, 3) for op in ("mad.lo", "mad.hi", "sad") for t in SIGNS]
    cases += [simple(ARITHMETIC, f"{op}.s{w}", f"s{w}", 1) for op in ("abs", "neg") for w in WIDTHS]
    for sign in "su":
        for narrow, wide in (("16", "32"), ("32", "64")):
            cases.append(simple(ARITHMETIC, f"mul.wide.{sign}{narrow}", sign + narrow, 2, sign + wide))
            kinds = f"{sign}{narrow} {sign}{narrow} {sign}{wide}"
            cases.append(mixed(ARITHMETIC, f"mad.wide.{sign}{narrow}", kinds, sign + wide))
        for part in ("lo", "hi"):
            cases.append(simple(ARITHMETIC, f"mul24.{part}.{sign}32", f"{sign}32", 2))
            cases.append(simple(ARITHMETIC, f"mad24.{part}.{sign}32", f"{sign}32", 3))
        for other in "su":
            cases.append(simple(ARITHMETIC, f"dp4a.{sign}32.{other}32", "b32", 3))
            cases += [simple(ARITHMETIC, f"dp2a.{part}.{sign}32.{other}32", "b32", 3) for part in ("lo", "hi")]
    cases += [simple(ARITHMETIC, f"{op}.sat.s32", "s32", 2) for op in ("add", "sub")]
    cases += [simple(ARITHMETIC, "mad.hi.sat.s32", "s32", 3)]
    cases += [simple(ARITHMETIC, f"{op}.{t}x2", "b32", 2) for op in ("add", "min", "max") for t in ("u16", "s16")]
    return cases


def _bits() -> list[InstructionCase]:
    cases = [simple(BITS, f"{op}.b{w}", f"b{w}", 2) for op in ("and", "or", "xor") for w in WIDTHS]
    cases += [simple(BITS, f"{op}.b{w}", f"b{w}", 1) for op in ("not", "cnot") for w in WIDTHS]
    cases += [mixed(BITS, f"shl.b{w}", f"b{w} amount", f"b{w}") for w in WIDTHS]
    cases += [mixed(BITS, f"shr.{t}", f"{t} amount", t) for t in SIGNS]
    cases += [
        mixed(BITS, f"shf.{side}.{mode}.b32", "b32 b32 amount", "b32") for side in "lr" for mode in ("wrap", "clamp")
    ]
    cases += [
        InstructionCase(f"lop3.b32 {lut:#x}", BITS, f"lop3.b32 %d0, %a0, %a1, %a2, {lut};", "b32", ("b32",) * 3)
        for lut in (0x96, 0xE8, 0xCA, 0x1B, 0x80)
    ]
    cases += [
        mixed(BITS, f"prmt.b32{mode}", "b32 b32 b32", "b32")
        for mode in ("", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16")
    ]
    cases += [simple(BITS, f"{op}.b{w}", f"b{w}", 1, "b32") for op in ("popc", "clz") for w in ("32", "64")]
    cases += [simple(BITS, f"brev.b{w}", f"b{w}", 1) for w in ("32", "64")]
    for t in ("s32", "u32", "s64", "u64"):
        cases.append(mixed(BITS, f"bfe.{t}", f"{t} amount amount", t))
        cases += [simple(BITS, f"bfind{shift}.{t}", t, 1, "b32") for shift in ("", ".shiftamt")]
    cases += [mixed(BITS, f"bfi.b{w}", f"b{w} b{w} amount amount", f"b{w}") for w in ("32", "64")]
    cases += [
        mixed(BITS, f"{op}.{mode}.{t}", "b32 amount", "b32")
        for op in ("szext",)
        for mode in ("wrap", "clamp")
        for t in ("s32", "u32")
    ]
    cases += [mixed(BITS, f"bmsk.{mode}.b32", "amount amount", "b32") for mode in ("wrap", "clamp")]
    cases.append(
        InstructionCase(
            "fns.b32",
            BITS,
            "and.b32 %x, %a1, 31; rem.s32 %y, %a2, 33; fns.b32 %d0, %a0, %x, %y;",
            "b32",
            ("b32", "b32", "s32"),
        )
    )
    return cases


def _carry() -> list[InstructionCase]:
    """The carry shows in the sum of two zeros after it."""

    def chain(name: str, first: str, second: str, sources: int, kind: str) -> InstructionCase:
        names = ", ".join(f"%a{i}" for i in range(sources))
        scratch = "%x" if kind.endswith("32") else "%X"
        code = f"{first} {scratch}, {names}; {second} %d0, 0, 0; xor.b{kind[1:]} %d0, %d0, {scratch};"
        return InstructionCase(name, CARRY, code, kind, (kind,) * sources)

    cases = []
    for kind in ("u32", "u64"):
        cases.append(chain(f"add.cc.{kind} addc", f"add.cc.{kind}", f"addc.{kind}", 2, kind))
        cases.append(chain(f"sub.cc.{kind} subc", f"sub.cc.{kind}", f"subc.{kind}", 2, kind))
        cases.append(chain(f"mad.lo.cc.{kind} addc", f"mad.lo.cc.{kind}", f"addc.{kind}", 3, kind))
        cases.append(chain(f"mad.hi.cc.{kind} addc", f"mad.hi.cc.{kind}", f"addc.{kind}", 3, kind))
    return cases


CASES = (*_arithmetic(), *_bits(), *_carry())
