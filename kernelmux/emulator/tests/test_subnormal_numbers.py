"""With .ftz a register is flushed once in a block, and not at all where it cannot hold a subnormal number."""

import numpy as np
import pytest

from kernelmux.emulator.running.launch import Module
from kernelmux.emulator.tests.single import kernel, run

SMALL, LEAST, ONE = 0x00000003, 0x00800000, 0x3F800000
FMA = "fma.rn.ftz.f32 %d0, %a0, %a1, %a1;"
CODES = {
    "loaded": (
        FMA,
        [(SMALL, ONE, ONE), (SMALL, SMALL, 0), (0x80000001, 0x80000001, 0), (LEAST, LEAST, LEAST)],
    ),
    "an integer's bits": (f"mov.b32 %d1, {SMALL}; add.ftz.f32 %d0, %d1, %a1;", [(0, 0, 0), (0, ONE, ONE)]),
    "a constant": (f"mov.f32 %d1, 0f{SMALL:08X}; add.ftz.f32 %d0, %d1, %a1;", [(0, 0, 0), (0, ONE, ONE)]),
    "an immediate": (f"add.ftz.f32 %d0, %a0, 0f{SMALL:08X};", [(0, 0, 0), (SMALL, 0, 0)]),
    "a copy of a copy": ("mov.b32 %d1, %a0; mov.b32 %d0, %d1; add.ftz.f32 %d0, %d0, %d0;", [(SMALL, 0, 0)]),
    "written again": ("add.ftz.f32 %d1, %a0, %a0; mov.b32 %d1, %a0; add.ftz.f32 %d0, %d1, %d1;", [(SMALL, 0, 0)]),
    "sums that cancel": ("add.f32 %d1, %a0, %a1; add.ftz.f32 %d0, %d1, %d1;", [(LEAST, LEAST | 1 << 31 | 1, 1 << 31)]),
    "a sign alone": ("neg.ftz.f32 %d0, %a0;", [(SMALL, 0, 1 << 31), (LEAST, 0, LEAST | 1 << 31)]),
    "the larger one": ("max.ftz.f32 %d0, %a0, %a1;", [(SMALL, 1 << 31, 0), (SMALL, LEAST, LEAST)]),
}


@pytest.mark.parametrize("name", CODES)
def test_inputs_and_results_are_flushed(name: str) -> None:
    code, rows = CODES[name]
    a, b, expected = (np.array(column, np.uint32) for column in zip(*rows, strict=True))
    assert run(code, "b32", ["b32", "b32"], [a, b]).tolist() == expected.tolist()


def _never_subnormal(code: str) -> frozenset[str]:
    made = kernel(code, "b32", ("b32", "b32"))
    assert isinstance(made.module, Module)
    program = made.program("single")
    assert program is not None
    return program.compiler.registers.normal


@pytest.mark.parametrize(
    ("code", "known"),
    [
        ("add.ftz.f32 %d1, %a0, %a1; add.ftz.f32 %d0, %d1, %d1;", True),
        ("mov.b32 %d1, 1065353216; @%p mov.b32 %d1, %d0; add.ftz.f32 %d0, %d1, %d1;", True),
        ("cvt.rn.f32.s32 %d1, %a0; add.ftz.f32 %d0, %d1, %d1;", True),
        ("selp.b32 %d1, 0f3F800000, %d0, %p; add.ftz.f32 %d0, %d1, %d1;", True),
        ("selp.b32 %d1, 0f3F800000, %a0, %p; add.ftz.f32 %d0, %d1, %d1;", False),
        ("add.f32 %d1, %a0, %a1; add.ftz.f32 %d0, %d1, %d1;", False),
        ("tanh.approx.f32 %d1, %a0; add.ftz.f32 %d0, %d1, %d1;", False),
        ("mov.b32 %d1, 3; add.ftz.f32 %d0, %d1, %d1;", False),
        ("mov.b32 %d1, %a0; add.ftz.f32 %d0, %d1, %d1;", False),
        ("add.ftz.f32 %d1, %a0, %a1; or.b32 %d1, %d1, 1; add.ftz.f32 %d0, %d1, %d1;", False),
    ],
)
def test_registers_that_are_never_subnormal(code: str, known: bool) -> None:
    found = _never_subnormal(code)
    assert "%d0" in found
    assert ("%d1" in found) is known
    assert not {"%a0", "%a1"} & found
