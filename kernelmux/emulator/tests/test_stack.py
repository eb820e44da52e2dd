"""alloca: memory of a size that each thread chooses, given back at the end of a function or to a saved pointer."""

import numpy as np
import pytest

from kernelmux.emulator import EmulatorError, checks
from kernelmux.emulator.running.launch import load

HEAD = ".version 8.8\n.target sm_90a\n.address_size 64\n"
# Returns the sum of the squares below n, through an array of n numbers on its stack.
SQUARES = """.func (.param .b32 r) squares(.param .b32 n) {
.reg .b32 %n, %i, %v, %s; .reg .b64 %p, %q, %size; .reg .pred %c;
ld.param.b32 %n, [n]; mul.wide.u32 %size, %n, 4; alloca.u64 %p, %size; mov.b32 %i, 0; mov.b32 %s, 0;
fill: setp.ge.u32 %c, %i, %n; @%c bra filled; mul.lo.u32 %v, %i, %i; mul.wide.u32 %q, %i, 4; add.u64 %q, %q, %p;
st.local.b32 [%q], %v; add.u32 %i, %i, 1; bra fill;
filled: setp.eq.u32 %c, %i, 0; @%c bra done; sub.u32 %i, %i, 1; mul.wide.u32 %q, %i, 4; add.u64 %q, %q, %p;
ld.local.b32 %v, [%q]; add.u32 %s, %s, %v; bra filled;
done: st.param.b32 [r], %s; ret;
}
"""
START = """.reg .b32 %t, %n, %v; .reg .b64 %y, %at, %p, %q, %save, %size; .reg .b32 %p32;
ld.param.u64 %y, [y]; mov.u32 %t, %tid.x; mul.wide.u32 %at, %t, 4; add.u64 %at, %at, %y;
"""


def run(body: str, threads: int = 64) -> np.ndarray:
    y = np.zeros(threads, np.uint32)
    text = f"{HEAD}{SQUARES}.visible .entry k(.param .u64 y) {{\n{START}{body}\nst.global.b32 [%at], %v; ret;\n}}"
    with checks("full"):
        load(text).kernel("k").launch(1, threads, (y,), names=("y",))
    return y


CALL = "{ .param .b32 a; .param .b32 b; st.param.b32 [a], %n; call (b), squares, (a); ld.param.b32 %n, [b]; }\n"


def test_a_function_with_an_array_on_its_stack() -> None:
    t = np.arange(64)
    expected = [sum(i * i for i in range(n)) for n in t % 7]
    assert run("rem.u32 %n, %t, 7;" + CALL + "mov.b32 %v, %n;").tolist() == expected


def test_what_the_caller_has_allocated_survives_a_call() -> None:
    body = (
        """and.b32 %n, %t, 15; add.u32 %n, %n, 4; cvt.u64.u32 %size, %n; alloca.u64 %p, %size, 16;
    st.local.b32 [%p], %t;"""
        + CALL
        + "ld.local.b32 %v, [%p]; add.u32 %v, %v, %n;"
    )
    t = np.arange(64)
    assert np.array_equal(run(body), t + [sum(i * i for i in range(n)) for n in t % 16 + 4])


def test_alignment_and_order() -> None:
    body = """alloca.u64 %p, 5; alloca.u64 %q, 8, 64; and.b64 %size, %q, 63; cvt.u32.u64 %v, %size;
    sub.u64 %q, %q, %p; cvt.u32.u64 %n, %q; setp.lt.s32 %c, %n, 5; selp.b32 %v, 99, %v, %c;"""
    assert (run(".reg .pred %c;" + body) == 0).all()


def test_a_restored_stack_is_used_again() -> None:
    body = """stacksave.u64 %save; alloca.u64 %p, 64; st.local.b32 [%p], 1; stackrestore.u64 %save; alloca.u64 %q, 64;
    sub.u64 %q, %q, %p; cvt.u32.u64 %v, %q;"""
    assert (run(body) == 0).all()


def test_32_bit_pointers() -> None:
    body = "alloca.u32 %p32, 16; st.local.b32 [%p32+4], %t; ld.local.b32 %v, [%p32+4];"
    assert np.array_equal(run(body), np.arange(64))


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        ("alloca.u64 %p, 16; ld.local.b32 %v, [%p+8];", "uninitialised", "before any write"),
        (
            "stacksave.u64 %save; alloca.u64 %p, 16; st.local.b32 [%p], 1; stackrestore.u64 %save; alloca.u64 %p, 16; "
            "ld.local.b32 %v, [%p];",
            "uninitialised",
            "before any write",
        ),
        ("alloca.u64 %p, 1048576;", "call stack", "524288 bytes"),
        ("mov.b64 %save, 999; stackrestore.u64 %save;", "call stack", "no stacksave"),
        ("alloca.u64 %p, 16; st.local.b32 [%p+4096], 1;", "out of bounds", "local memory"),
    ],
)
def test_misuse(body: str, kind: str, text: str) -> None:
    with pytest.raises(EmulatorError, match=text) as raised:
        run(body)
    assert raised.value.kind == kind
