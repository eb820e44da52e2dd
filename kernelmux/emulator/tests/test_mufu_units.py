"""The approximate functions against bits that an H200 gave."""

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernelmux.emulator.arithmetic import mufu_forms as forms
from kernelmux.emulator.arithmetic import mufu_units as units
from kernelmux.emulator.arithmetic.floats import from_bf16, to_bf16
from kernelmux.emulator.arithmetic.mufu_tables import POWER
from kernelmux.emulator.validation.hardware.interpolator import NotInterpolated, segment

Run = Callable[..., Any]
F2, F4, F8, U2, U4, U8 = (np.dtype(t) for t in ("f2", "f4", "f8", "u2", "u4", "u8"))


def _half(unit: Run) -> tuple[Any, Run]:
    run = forms.shortened(unit, brain=False)
    return U2, lambda x: run(x.view(F2).astype(F4)).astype(F2).view(U2)


def _brain(unit: Run) -> tuple[Any, Run]:
    run = forms.shortened(unit, brain=True)
    return U2, lambda x: to_bf16(run(from_bf16(x)))


def _single(run: Run) -> tuple[Any, Run]:
    return U4, lambda *values: run(*(v.view(F4) for v in values)).view(U4)


def _double(run: Run) -> tuple[Any, Run]:
    return U8, lambda x: run(x.view(F8)).view(U8)


RUNS: dict[str, tuple[Any, Run]] = {
    **{f"{name}.approx.f32": _single(getattr(forms, name)) for name in ("rcp", "sqrt", "rsqrt", "lg2", "ex2")},
    **{f"{name}.approx.ftz.f32": _single(getattr(units, name)) for name in ("rcp", "sqrt", "rsqrt", "lg2", "ex2")},
    **{f"{name}.approx.ftz.f32": _single(getattr(units, name)) for name in ("sin", "cos")},
    "tanh.approx.f32": _single(units.tanh),
    "div.approx.f32": _single(forms.divide),
    "div.approx.ftz.f32": _single(forms.divide_ftz),
    "div.full.f32": _single(forms.divide_full),
    "div.full.ftz.f32": _single(forms.divide_full_ftz),
    "ex2.approx.f16": _half(units.ex2),
    "tanh.approx.f16": _half(units.tanh),
    "ex2.approx.ftz.bf16": _brain(units.ex2),
    "tanh.approx.bf16": _brain(units.tanh),
    "rcp.approx.ftz.f64": _double(forms.rcp64),
    "rsqrt.approx.f64": _double(forms.rsqrt64),
}

# Operands and result in hexadecimal: special values first.
MEASURED = {
    "rcp.approx.f32": """
        0 7f800000, 1 7f800000, 7fffff 7e800001, 800000 7e800000, 3f7fffff 3f800001, 40000000 3f000000, 7f7fffff
        200000, 7f800000 0, 7fc00000 7fffffff, 80000000 ff800000, 80000001 ff800000, 807fffff fe800001, 80800000
        fe800000, bf800000 bf800000, ff800000 80000000, e7ad27bd 973d3d98, c2ad6cec bc3cf21a, 36c587b8 4825e37b
    """,
    "rcp.approx.ftz.f32": """
        0 7f800000, 1 7f800000, 7fffff 7f800000, 800000 7e800000, 3f7fffff 3f800001, 40000000 3f000000, 7f7fffff
        0, 7f800000 0, 7fc00000 7fffffff, 80000000 ff800000, 80000001 ff800000, 807fffff ff800000, 80800000
        fe800000, bf800000 bf800000, ff800000 80000000, 3dee05a2 4109aafe, 40af9cb5 3e3a97d1, 3bfdd375 430118a7
    """,
    "sqrt.approx.f32": """
        0 0, 1 1a3504f3, 7fffff 1fffffff, 800000 20000000, 3f7fffff 3f7fffff, 40000000 3fb504f3, 7f7fffff
        5f7fffff, 7f800000 7f800000, 7fc00000 7fffffff, 80000000 80000000, 80000001 7fffffff, 807fffff 7fffffff,
        80800000 7fffffff, bf800000 7fffffff, ff800000 7fffffff, 4124190f 404cf60b, ac4f1d38 7fffffff, 3f6c8807
        3f7612be
    """,
    "sqrt.approx.ftz.f32": """
        0 0, 1 0, 7fffff 0, 800000 20000000, 3f7fffff 3f7fffff, 40000000 3fb504f3, 7f7fffff 5f7fffff, 7f800000
        7f800000, 7fc00000 7fffffff, 80000000 80000000, 80000001 80000000, 807fffff 80000000, 80800000 7fffffff,
        bf800000 7fffffff, ff800000 7fffffff, bbaf89a7 7fffffff, 33a3e59b 3990d732, c7721226 7fffffff
    """,
    "rsqrt.approx.f32": """
        0 7f800000, 1 64b504f2, 7fffff 5f000000, 800000 5f000000, 3f7fffff 3f800000, 40000000 3f3504f2, 7f7fffff
        1f800000, 7f800000 0, 7fc00000 7fffffff, 80000000 ff800000, 80000001 7fffffff, 807fffff 7fffffff,
        80800000 7fffffff, bf800000 7fffffff, ff800000 7fffffff, 3b9b0f76 41689784, 3c583306 410b48d5, b9f6db14
        7fffffff
    """,
    "rsqrt.approx.ftz.f32": """
        0 7f800000, 1 7f800000, 7fffff 7f800000, 800000 5f000000, 3f7fffff 3f800000, 40000000 3f3504f2, 7f7fffff
        1f800000, 7f800000 0, 7fc00000 7fffffff, 80000000 ff800000, 80000001 ff800000, 807fffff ff800000,
        80800000 7fffffff, bf800000 7fffffff, ff800000 7fffffff, bf14e98a 7fffffff, c2915829 7fffffff, 42b02c7d
        3dda35b7
    """,
    "lg2.approx.f32": """
        0 ff800000, 1 c3150000, 7fffff c2fc0000, 800000 c2fbffff, 3f7fffff b24b4000, 40000000 3f800000, 7f7fffff
        42ffffff, 7f800000 7f800000, 7fc00000 7fffffff, 80000000 ff800000, 80000001 7fffffff, 807fffff 7fffffff,
        80800000 7fffffff, bf800000 7fffffff, ff800000 7fffffff, c26aa353 7fffffff, 75e87bbf 42d9b8d2, 8b7c3696
        7fffffff
    """,
    "lg2.approx.ftz.f32": """
        0 ff800000, 1 ff800000, 7fffff ff800000, 800000 c2fbffff, 3f7fffff b24b4000, 40000000 3f800000, 7f7fffff
        42ffffff, 7f800000 7f800000, 7fc00000 7fffffff, 80000000 ff800000, 80000001 ff800000, 807fffff ff800000,
        80800000 7fffffff, bf800000 7fffffff, ff800000 7fffffff, 3c20a50d c0d5833c, c721170e 7fffffff, 7e155102
        42fa71c8
    """,
    "ex2.approx.f32": """
        0 3f800000, 1 3f800000, 7f800000 7f800000, 7fc00000 7fffffff, 80000000 3f800000, 807fffff 3f800000,
        bf800000 3f000000, ff800000 0, c30d55fd cb, c301c037 98214, c30777e7 2e42, c30ea7b8 51, c310c3c9 13,
        c17ba82b 379a7f75, c0942edf 3d2556a4, c1711edf 37f3de7c, 41995457 490fa079
    """,
    "ex2.approx.ftz.f32": """
        0 3f800000, 1 3f800000, 7f800000 7f800000, 7fc00000 7fffffff, 80000000 3f800000, 807fffff 3f800000,
        bf800000 3f000000, ff800000 0, c2fff045 0, c30d9822 0, c3001588 0, c2ff501c 0, c3018602 0, 4163544a
        4693dbe9, c186f74c 370bff2b, 415df90d 466a7a26, 4136db64 452c462d
    """,
    "sin.approx.ftz.f32": """
        0 0, 1 0, 7fffff 0, 800000 0, 3f7fffff 3f576aa3, 40000000 3f68c7b6, 7f7fffff 0, 7f800000 7fffffff,
        7fc00000 7fffffff, 80000000 80000000, 80000001 80000000, 807fffff 80000000, 80800000 80000000, bf800000
        bf576aa3, ff800000 7fffffff, 3ffb589a 3f6c7fb4, 3f9b742e 3f6feba1, c04e9fb7 3db1c1fd
    """,
    "cos.approx.ftz.f32": """
        0 3f800000, 1 3f800000, 7fffff 3f800000, 800000 3f800000, 3f7fffff 3f0a5141, 40000000 bed51130, 7f7fffff
        3f800000, 7f800000 7fffffff, 7fc00000 7fffffff, 80000000 3f800000, 80000001 3f800000, 807fffff 3f800000,
        80800000 3f800000, bf800000 3f0a5141, ff800000 7fffffff, 3ecea725 3f6b6de6, 402b3826 bf64ab80, c0747316
        bf476426
    """,
    "tanh.approx.f32": """
        0 0, 1 1, 7fffff 7fffff, 800000 800000, 3f7fffff 3f42f788, 40000000 3f76caa0, 7f7fffff 3f800000,
        7f800000 3f800000, 7fc00000 7fffffff, 80000000 80000000, 80000001 80000001, 807fffff 807fffff, 80800000
        80800000, bf800000 bf42f848, ff800000 bf800000, 4001faa7 3f775559, 3d9f5657 3d9f043b, 407be652 3f7fce09
    """,
    "rcp.approx.ftz.f64": """
        0 7ff0000000000000, 1 7ff0000000000000, fffffffffffff 7ff0000000000000, 10000000000000 7fd0000000000000,
        3fefffffffffffff 3ff0000000000000, 4000000000000000 3fe0000000000000, 7fefffffffffffff 0,
        7ff0000000000000 0, 7ff8000000000000 7fffffff00000000, 8000000000000000 fff0000000000000,
        8000000000000001 fff0000000000000, 800fffffffffffff fff0000000000000, 8010000000000000 ffd0000000000000,
        bff0000000000000 bff0000000000000, fff0000000000000 8000000000000000, 4024083b44207039 3fb98f1500000000,
        defa7fb2d86b4ba9 a0e3525500000000, bfb5aec1c36df6fe c0279d0500000000
    """,
    "rsqrt.approx.f64": """
        0 7ff0000000000000, 1 6180000000000000, fffffffffffff 5fe0000000000001, 10000000000000 5fe0000000000000,
        3fefffffffffffff 3ff0000000000000, 4000000000000000 3fe6a09e667f3bcd, 7fefffffffffffff 1ff0000000000000,
        7ff0000000000000 0, 7ff8000000000000 7ff8000000000000, 8000000000000000 fff0000000000000,
        8000000000000001 fff8000000000000, 800fffffffffffff fff8000000000000, 8010000000000000 fff8000000000000,
        bff0000000000000 fff8000000000000, fff0000000000000 fff8000000000000, c06d09b35e7613f8 fff8000000000000,
        bffd363daaa463f1 fff8000000000000, 3f775045037adcaa 402a827f649f6894
    """,
    "ex2.approx.f16": """
        0 3c00, 1 3c00, 11c5 3c00, 1c08 3c02, 2e00 3c44, 3b81 3fa9, 3b9f 3fbd, 3c01 4000, 3f8f 4369, 4bff 7bf4,
        4c00 7c00, 7c00 7c00, 7e00 7fff, 7fc0 7fff, 8001 3c00, b801 39a7, c2fd 2dae, cb00 400, ce40 0, fc00 0
    """,
    "ex2.approx.ftz.bf16": """
        0 3f80, 1 3f80, 11c5 3f80, 1c08 3f80, 2e00 3f80, 3b81 3f80, 3b9f 3f80, 3c01 3f80, 3f8f 400a, 4bff 7f80,
        4c00 7f80, 7c00 7f80, 7e00 7f80, 7fc0 7fff, 8001 3f80, b801 3f7f, c2fd 0, cb00 0, ce40 0, fc00 0
    """,
    "tanh.approx.f16": """
        0 0, 1 1, 11c5 11c5, 1c08 1c07, 2e00 2dfb, 3b81 39df, 3b9f 39ed, 3c01 3a18, 3f8f 3ba4, 4bff 3c00, 4c00
        3c00, 7c00 3c00, 7e00 7fff, 7fc0 7fff, 8001 8001, b801 b766, c2fd bbfc, cb00 bc00, ce40 bc00, fc00 bc00
    """,
    "tanh.approx.bf16": """
        0 0, 1 1, 11c5 11c5, 1c08 1c08, 2e00 2e00, 3b81 3b80, 3b9f 3b9e, 3c01 3c00, 3f8f 3f4e, 4bff 3f80, 4c00
        3f80, 7c00 3f80, 7e00 3f80, 7fc0 7fff, 8001 8001, b801 b801, c2fd bf80, cb00 bf80, ce40 bf80, fc00 bf80
    """,
    "div.approx.f32": """
        7fffff ff7fffff 80000000, 800000 ff7fffff 80000000, 1 1 3f800000, 1 80000001 bf800000, 0 0 7fffffff,
        800001 3f800001 800000, c002ff6e 3f809b36 c0026155, bf938f24 bfe4dde5 3f250d90, 410459d3 3faad013
        40c65b43, c14acac6 3f907bdf c133a7ec
    """,
    "div.approx.ftz.f32": """
        7fffff ff7fffff 80000000, 800000 ff7fffff 80000000, 1 1 7fffffff, 1 80000001 7fffffff, 0 0 7fffffff,
        800001 3f800001 800000, 40267b77 bfd9b15e bfc3c72a, be4a25b7 bfbf10c9 3e076c8a, c041df07 3f725a3a
        c04cc9e4, 41cbd4a3 3f81c4a4 41c90da9
    """,
    "div.full.f32": """
        7fffff ff7fffff 80000000, 800000 ff7fffff 80000000, 1 1 3f800000, 1 80000001 bf800000, 0 0 7fffffff,
        800001 3f800001 800000, c04a11d1 bff25d5d 3fd5701b, be41a807 bf1f99e9 3e9b4fec, 40c2e7fd 3f5ec00b
        40dffff1, c1e26b9f 3f513d68 c20a828f
    """,
    "div.full.ftz.f32": """
        7fffff ff7fffff 80000000, 800000 ff7fffff 80000000, 1 1 7fffffff, 1 80000001 7fffffff, 0 0 7fffffff,
        800001 3f800001 800000, c080d6f1 3f1dcd80 c0d10385, 40613278 bf30126a c0a3b67c, c14cd4d3 3f906746
        c135904c, be71ce79 bf7c9167 3e7517a3
    """,
}

# CRC-32 of the results, as little-endian uint32, for every 61st number of the octave that starts here.
OCTAVES = {
    ("rcp", 1.0): 0xC6827CF4,
    ("rsqrt", 1.0): 0x5452C13C,
    ("rsqrt", 2.0): 0xF3A0BAF3,
    ("sqrt", 1.0): 0xB3628B30,
    ("sqrt", 2.0): 0x243E59D1,
    ("ex2", 0.5): 0x7613AE88,
    ("ex2", -0.5): 0x172789B0,
    ("ex2", 0.03125): 0x7195AF97,
    ("ex2", -0.03125): 0x25598A08,
    ("lg2", 0.0625): 0x642392AC,
    ("lg2", 2.0): 0x09A7F78D,
    ("lg2", 16.0): 0xAFB98A24,
    ("lg2", 2.0**30): 0x5E293A20,
    ("tanh", 2.0**-9): 0xC6F824FA,
    ("tanh", 2.0**-6): 0x8E6F2D5D,
    ("tanh", 0.125): 0x8916F6C7,
    ("tanh", 0.5): 0xC5655CEA,
    ("tanh", 1.0): 0x8C7B8FE4,
    ("tanh", 2.0): 0xDB8FFC98,
    ("tanh", 4.0): 0x01425C59,
    ("sin", 0.5): 0x4FDEF184,
    ("cos", 0.5): 0x6A25D92B,
}


@pytest.mark.parametrize("name", MEASURED)
def test_bits(name: str) -> None:
    """As one array and one by one."""
    dtype, run = RUNS[name]
    rows = np.array([[int(word, 16) for word in row.split()] for row in MEASURED[name].split(",")], np.uint64)
    *operands, expected = rows.T.astype(dtype)
    with np.errstate(all="ignore"):
        assert [hex(x) for x in run(*operands)] == [hex(x) for x in expected]
        assert [hex(run(*values)) for values in zip(*operands, strict=True)] == [hex(x) for x in expected]


@pytest.mark.parametrize(("name", "first"), OCTAVES)
def test_octaves(name: str, first: float) -> None:
    fractions = np.arange(0, 1 << 23, 61, dtype=U4)
    x = (fractions | F4.type(first).view(U4)).view(F4)
    assert zlib.crc32(getattr(units, name)(x).astype("<f4").tobytes()) == OCTAVES[name, first]


@pytest.mark.parametrize(("name", "crc"), [("sin", 0x2B6EB276), ("cos", 0xA1DB75ED)])
def test_circle(name: str, crc: int) -> None:
    """All four quadrants."""
    x = (np.arange(0, 1 << 23, 16)[::7] * 2.0**-20).astype(F4)
    assert zlib.crc32(getattr(units, name)(x).astype("<f4").tobytes()) == crc


def test_any_layout() -> None:
    """Strided operands, several axes, and none at all."""
    x = np.linspace(0.1, 9, 24, dtype=F4).reshape(4, 6)
    expected = units.rcp(x.ravel())
    assert np.array_equal(units.rcp(x.T), expected.reshape(4, 6).T)
    assert units.rcp(x[1, 2]) == expected[8]
    assert units.rcp(x[:0]).shape == (0, 6)


@pytest.mark.parametrize("number", [0, 21, 63])
def test_coefficients_from_results(number: int) -> None:
    """The way back: what `hardware.interpolator` finds in the unit's results is what the unit has."""
    x = (number + np.arange(1 << 17) * 2.0**-17) / 64
    found = segment(units.ex2(x.astype(F4)), unit=2.0**-23)
    c0, c1, c2 = (float(c[number]) for c in (POWER.c0, POWER.c1, POWER.c2))
    assert found.lower <= c0 < found.upper < found.lower + 2**-12
    assert (found.c1, found.c2) == (c1 * 2**17, c2 * 2**15)


def test_no_coefficients() -> None:
    """Rounded results of the function itself are no unit's."""
    x = (20 + np.arange(1 << 17) * 2.0**-17) / 64
    with pytest.raises(NotInterpolated, match="expected C0"):
        segment(np.exp2(x).astype(F4), unit=2.0**-23)
