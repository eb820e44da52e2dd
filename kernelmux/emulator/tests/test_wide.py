"""128-bit registers: moves, loads, stores, exchange and compare-and-swap."""

from typing import Any

import numpy as np
import pytest

from kernelmux.emulator import EmulatorError, checks
from kernelmux.emulator.running.launch import load

START = """.reg .b64 %x, %y, %at, %to, %lo, %hi; .reg .b128 %a, %b, %d; .reg .b32 %t; .reg .pred %p;
.shared .align 16 .b8 tile[1024];
ld.param.u64 %x, [x]; ld.param.u64 %y, [y]; mov.u32 %t, %tid.x; mul.wide.u32 %at, %t, 16;
add.u64 %to, %y, %at; add.u64 %at, %x, %at;
"""


def run(body: str, x: Any, y: Any, threads: int) -> Any:
    head = ".version 8.8\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 x, .param .u64 y) {\n"
    text = f"{head}{START}{body}\nret;\n}}"
    with checks("full"):
        load(text).kernel("k").launch(1, threads, (x, y), names=("x", "y"))
    return y


def wholes(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**63, (count, 2), np.uint64)


@pytest.mark.parametrize(
    "copy",
    [
        "ld.global.b128 %a, [%at]; st.global.b128 [%to], %a;",
        "ld.relaxed.gpu.global.b128 %a, [%at]; mov.b128 %b, %a; st.relaxed.gpu.global.b128 [%to], %b;",
        "ld.global.b128 %a, [%at]; mov.b128 {%lo, %hi}, %a; mov.b128 %b, {%lo, %hi}; st.b128 [%to], %b;",
        "mul.wide.u32 %lo, %t, 16; mov.u64 %hi, tile; add.u64 %lo, %lo, %hi; ld.b128 %a, [%at]; st.shared.b128 [%lo], %a; "
        "ld.shared.b128 %b, [%lo]; st.global.b128 [%to], %b;",
    ],
)
def test_copies(copy: str) -> None:
    x, y = wholes(64), np.zeros((64, 2), np.uint64)
    assert np.array_equal(run(copy, x, y, 64), x)


def test_halves_can_change_places() -> None:
    body = "ld.global.b128 %a, [%at]; mov.b128 {%lo, %hi}, %a; mov.b128 %a, {%hi, %lo}; st.global.b128 [%to], %a;"
    x = wholes(32)
    assert np.array_equal(run(body, x, np.zeros_like(x), 32), x[:, ::-1])


def test_some_lanes_only() -> None:
    body = """ld.global.b128 %a, [%at]; and.b32 %t, %t, 1; setp.eq.u32 %p, %t, 1; mov.b64 %lo, 5; mov.b64 %hi, 6;
    @%p mov.b128 %a, {%lo, %hi}; @!%p bra end; ld.global.b128 %b, [%at]; mov.b128 {%lo, %hi}, %b;
    end: @!%p st.global.b128 [%to], %a; @%p st.global.b128 [%to], %b;"""
    x = wholes(64)
    assert np.array_equal(run(body, x, np.zeros_like(x), 64), x)


@pytest.mark.parametrize("space", ["global", "shared"])
def test_exchange(space: str) -> None:
    """Threads put their values into four places and keep what they find: nothing may get lost."""
    at = "and.b32 %t, %t, 3; mul.wide.u32 %lo, %t, 16; add.u64 %x, %x, %lo;"
    if space == "shared":
        at = "and.b32 %t, %t, 3; mul.wide.u32 %lo, %t, 16; mov.u64 %x, tile; add.u64 %x, %x, %lo; mov.b64 %hi, 0;"
        at += "mov.b128 %b, {%hi, %hi}; st.shared.b128 [%x], %b; bar.sync 0;"
    body = f"ld.global.b128 %a, [%to]; {at} atom.{space}.exch.b128 %d, [%x], %a; st.global.b128 [%to], %d;"
    x, y = np.zeros((4, 2), np.uint64), wholes(32)
    mine = y.copy()
    run(body, x, y, 32)
    left = mine[28:] if space == "shared" else x
    assert sorted(map(tuple, [*y, *left])) == sorted(map(tuple, [*mine, *np.zeros((4, 2), np.uint64)]))
    assert np.array_equal(left, mine[28:])


def test_compare_and_swap() -> None:
    """Thread i replaces 0 by its value; of those that meet at one place the first wins."""
    body = """ld.global.b128 %a, [%to]; mov.b64 %hi, 0; mov.b128 %b, {%hi, %hi}; shr.u32 %t, %t, 3;
    mul.wide.u32 %lo, %t, 16;
    add.u64 %x, %x, %lo; atom.acq_rel.gpu.global.cas.b128 %d, [%x], %b, %a; st.global.b128 [%to], %d;"""
    x, y = np.zeros((4, 2), np.uint64), wholes(32)
    mine = y.copy()
    run(body, x, y, 32)
    assert np.array_equal(x, mine[::8])
    expected = np.repeat(mine[::8], 8, axis=0)
    expected[::8] = 0
    assert np.array_equal(y, expected)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("ld.global.b128 %a, [%x+8];", "misaligned"),
        ("st.global.b128 [%at+1024], %a;", "out of bounds"),
        ("ld.shared.b128 %a, [tile];", "uninitialised"),
        ("atom.global.exch.b128 %a, [%x+8], %b;", "misaligned"),
        ("atom.global.add.b128 %a, [%at], %b;", "unsupported"),
    ],
)
def test_misuse(body: str, kind: str) -> None:
    x = wholes(64)
    with pytest.raises(EmulatorError) as raised:
        run(body, x, np.zeros_like(x), 64)
    assert raised.value.kind == kind
