"""Loads and stores: what arrives in which register of which lane."""

from kernelmux.emulator.validation.hardware.model import InstructionCase

FAMILY = "copies, ldmatrix, stmatrix"
FILL = "st.shared.b32 [%s], %a0; st.shared.b32 [%s+4], %a1; st.shared.b32 [%s+8], %a2; st.shared.b32 [%s+12], %a3;"
MIX = "mov.b32 %d0, {r}0; " + "".join(
    f"mad.lo.u32 %d0, %d0, 1664525, {{r}}{i};" for i in range(1, 4)
)  # every bit of every register shows in the result
WORDS = ("b32",) * 4


def _case(name: str, code: str) -> InstructionCase:
    return InstructionCase(name, FAMILY, f"{{ .reg .b32 %r<4>; {code} {MIX.format(r='%r')} }}", "b32", WORDS)


def _matrices() -> list[InstructionCase]:
    cases = []
    for count in (1, 2, 4):
        registers = ", ".join(f"%r{i}" for i in range(count))
        rest = "".join(f"mov.b32 %r{i}, 0;" for i in range(count, 4))
        for more in ("", ".trans"):
            name = f"ldmatrix.sync.aligned.m8n8.x{count}{more}.shared.b16"
            load = f"{name} {{{registers}}}, [%s];"
            cases.append(_case(name, f"{FILL} bar.warp.sync 0xffffffff; {load}{rest}"))
            name = f"stmatrix.sync.aligned.m8n8.x{count}{more}.shared.b16"
            values = ", ".join(f"%a{i}" for i in range(count))
            store = f"{name} [%s], {{{values}}}; bar.warp.sync 0xffffffff;"
            cases.append(
                _case(name, f"{FILL} bar.warp.sync 0xffffffff; {store} ld.shared.v4.b32 {{%r0, %r1, %r2, %r3}}, [%s];")
            )
    return cases


def _vectors() -> list[InstructionCase]:
    """Each lane reads what the next one wrote."""
    turn = "bar.warp.sync 0xffffffff; setp.eq.u32 %p, %lane, 31; @%p sub.u32 %s, %s, 512; add.u32 %s, %s, 16;"
    return [
        _case(
            "st.shared.v4.b32 ld.shared.v4.b32",
            f"st.shared.v4.b32 [%s], {{%a0, %a1, %a2, %a3}}; {turn} ld.shared.v4.b32 {{%r0, %r1, %r2, %r3}}, [%s];",
        ),
        _case(
            "st.shared.v2.b64 ld.shared.v4.b32",
            f"mov.b64 %X, {{%a0, %a1}}; mov.b64 %Y, {{%a2, %a3}}; st.shared.v2.b64 [%s], {{%X, %Y}}; {turn}"
            " ld.shared.v4.b32 {%r0, %r1, %r2, %r3}, [%s];",
        ),
        _case(
            "st.shared.v4.b16 st.shared.v4.b8 ld.shared.v2.u8",
            f"{FILL} mov.b32 {{%h, %g}}, %a0; st.shared.v4.b16 [%s], {{%g, %h, %g, %g}}; cvt.u16.u32 %h, %a1;"
            f" st.shared.v4.u8 [%s+8], {{%h, %g, %h, %g}}; {turn} ld.shared.v2.u8 {{%h, %g}}, [%s+8];"
            " mov.b32 %r0, {%h, %g}; ld.shared.s8 %r1, [%s+9]; ld.shared.u16 %h, [%s+2]; cvt.u32.u16 %r2, %h;"
            " ld.shared.b32 %r3, [%s+4];",
        ),
    ]


CASES = (*_matrices(), *_vectors())
