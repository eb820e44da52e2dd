"""Exchange between the lanes of a warp."""

from kernelmux.emulator.validation.hardware.model import InstructionCase

FAMILY = "warp exchange"
EVERY = "0xffffffff"


def _shuffles() -> list[InstructionCase]:
    """A source out of range shows in the highest bit."""
    cases = []
    for mode in ("up", "down", "bfly", "idx"):
        for clamp in (0x1F, 0x00, 0x181F, 0x1807, 0x0C0F, 0x0813):
            code = f"shfl.sync.{mode}.b32 %d0|%p, %a0, %a1, {clamp}, {EVERY}; @!%p xor.b32 %d0, %d0, 0x80000000;"
            cases.append(InstructionCase(f"shfl.sync.{mode}.b32 {clamp:#x}", FAMILY, code, "b32", ("b32", "lane")))
    code = f"and.b32 %x, %a1, 0x1f1f; shfl.sync.idx.b32 %d0, %a0, %a2, %x, {EVERY};"
    return [*cases, InstructionCase("shfl.sync.idx.b32 any clamp", FAMILY, code, "b32", ("b32", "b32", "lane"))]


def _votes() -> list[InstructionCase]:
    """`alike` makes all four lanes of a quad, then sometimes all of a warp, agree."""
    uniform = "shfl.sync.idx.b32 %x, %a1, 0, 0x1f, 0xffffffff; setp.gt.u32 %q, %x, 1; @%q setp.eq.u32 %p, %x, 2;"
    start = f"mov.pred %p, %a0; {uniform} "
    cases = [
        InstructionCase(
            f"vote.sync.{mode}.pred",
            FAMILY,
            f"{start} vote.sync.{mode}.pred %q, %p, {EVERY}; selp.b32 %d0, 1, 0, %q;",
            "b32",
            ("pred", "alike"),
        )
        for mode in ("all", "any", "uni")
    ]
    cases.append(
        InstructionCase(
            "vote.sync.ballot.b32", FAMILY, f"{start} vote.sync.ballot.b32 %d0, %p, {EVERY};", "b32", ("pred", "alike")
        )
    )
    for width, wide in (("32", "%a0"), ("64", "%X")):
        code = f"cvt.u64.u32 %X, %a0; match.any.sync.b{width} %d0, {wide}, {EVERY};"
        cases.append(InstructionCase(f"match.any.sync.b{width}", FAMILY, code, "b32", ("alike",)))
        same = "%x" if width == "32" else "%X"
        code = f"and.pred %p, %a0, %a1; selp.b32 %x, 1, 0, %p; cvt.u64.u32 %X, %x; match.all.sync.b{width} %d0|%p, "
        code += f"{same}, {EVERY}; @%p not.b32 %d0, %d0;"
        cases.append(InstructionCase(f"match.all.sync.b{width}", FAMILY, code, "b32", ("pred", "pred")))
    return cases


def _reductions() -> list[InstructionCase]:
    kinds = [(op, t) for op in ("add", "min", "max") for t in ("s32", "u32")]
    kinds += [(op, "b32") for op in ("and", "or", "xor")]
    cases = [
        InstructionCase(f"redux.sync.{op}.{t}", FAMILY, f"redux.sync.{op}.{t} %d0, %a0, {EVERY};", t, (t,))
        for op, t in kinds
    ]
    code = f"elect.sync %d0|%p, {EVERY}; @%p add.u32 %d0, %d0, 100; activemask.b32 %x; xor.b32 %d0, %d0, %x;"
    return [*cases, InstructionCase("elect.sync activemask", FAMILY, code, "b32", ("b32",))]


CASES = (*_shuffles(), *_votes(), *_reductions())
