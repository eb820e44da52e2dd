"""Products on tensor cores: one mma.sync or wgmma per warp or warpgroup, on fragments of random elements.

Which lane holds which element does not matter here: both sides get the same registers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from kernelmux.emulator.arithmetic.float8 import to_float8
from kernelmux.emulator.arithmetic.matrix_elements import TF32_MASK, from_float
from kernelmux.emulator.validation.hardware.model import COUNT, THREADS
from kernelmux.emulator.validation.hardware.values import random_bits

Array = np.ndarray[Any, Any]
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "f32": 32, "s32": 32}
B_BYTES = 256  # wgmma: B is [8, 32 bytes], two core matrices of 8 rows of 16 bytes


@dataclass(frozen=True)
class MatrixCase:
    """One instruction.

    name, family  see `Case`.
    wide          wgmma (a block is one product) instead of mma.sync (a warp is one).
    shape         as in the opcode, "m16n8k16".
    a, b, d       element types; the accumulator has the type of the result.
    numbers       how elements are drawn: see `draw`.
    """

    name: str
    family: str
    wide: bool
    shape: str
    a: str
    b: str
    d: str
    numbers: str

    @property
    def stored(self) -> tuple[str, ...]:
        """The kind of the registers that are compared."""
        return ("f16x2" if self.d == "f16" else self.d,)

    @cached_property
    def words(self) -> tuple[int, int, int]:
        """Registers of a lane for A (wgmma: four), for B (none for wgmma), for the sum."""
        m, n, k = (int(part) for part in self.shape.replace("m", "").replace("n", " ").replace("k", " ").split())
        lanes = 128 if self.wide else 32
        return (
            m * k * BITS[self.a] // 32 // lanes,
            n * k * BITS[self.b] // 32 // lanes,
            m * n * BITS[self.d] // 32 // lanes,
        )

    @cached_property
    def inputs(self) -> list[Array]:
        """Registers of A, B (wgmma: B as it lies in shared memory) and the sum, as bits."""
        n_a, n_b, n_d = self.words
        b_words = COUNT // THREADS * B_BYTES // 4 if self.wide else COUNT * n_b
        return [
            draw(f"{self.name} a", COUNT * n_a, self.a, self.numbers),
            draw(f"{self.name} b", b_words, self.b, self.numbers),
            draw(f"{self.name} c", COUNT * n_d, self.d, self.numbers),
        ]

    def kernel(self, name: str) -> str:
        """The text of the kernel, called `name`."""
        n_a, n_b, n_d = self.words
        loads = _registers("a", n_a, 0) + _registers("c", n_d, 2)
        body = self._wide() if self.wide else _registers("b", n_b, 1) + self._narrow()
        stores = _place(3, n_d) + "".join(f"st.global.b32 [%o+{4 * i}], %c{i};\n" for i in range(n_d))
        return f"""
.visible .entry {name}(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3)
{{
.shared .align 128 .b8 tile[{B_BYTES}];
.reg .b32 %t; .reg .b32 %i; .reg .b32 %x; .reg .b64 %o; .reg .b64 %X; .reg .pred %p; .reg .b32 %v<4>;
.reg .b32 %a<{n_a}>; .reg .b32 %b<{n_b + 1}>; .reg .b32 %c<{n_d}>;
mov.u32 %t, %tid.x; mov.u32 %x, %ctaid.x; mad.lo.u32 %i, %x, {THREADS}, %t;
{loads}{body}
{stores}ret;
}}
"""

    def _narrow(self) -> str:
        c = _vector("c", self.words[2])
        opcode = f"mma.sync.aligned.{self.shape}.row.col.{self.d}.{self.a}.{self.b}.{self.d}"
        return f"{opcode} {c}, {_vector('a', self.words[0])}, {_vector('b', self.words[1])}, {c};"

    def _wide(self) -> str:
        """B goes to shared memory without a swizzle; descriptor: leading offset 128 bytes, stride 256."""
        c = _vector("c", self.words[2])
        scales = "" if self.d == "s32" else ", 1, 1" + (", 0" if BITS[self.a] == 16 else "")
        opcode = f"wgmma.mma_async.sync.aligned.{self.shape}.{self.d}.{self.a}.{self.b}"
        return f"""
ld.param.u64 %o, [p1]; mul.lo.u32 %x, %x, {B_BYTES}; cvt.u64.u32 %X, %x; add.u64 %o, %o, %X;
setp.lt.u32 %p, %t, 16; mul.wide.u32 %X, %t, 16; add.u64 %o, %o, %X;
mov.u32 %x, tile; mad.lo.u32 %x, %t, 16, %x;
@%p ld.global.v4.b32 {{%v0, %v1, %v2, %v3}}, [%o];
@%p st.shared.v4.b32 [%x], {{%v0, %v1, %v2, %v3}};
fence.proxy.async.shared::cta; bar.sync 0;
mov.u32 %x, tile; shr.u32 %x, %x, 4; cvt.u64.u32 %X, %x; or.b64 %X, %X, {8 << 16 | 16 << 32};
setp.eq.u32 %p, 0, 0;
wgmma.fence.sync.aligned;
{opcode} {c}, {_vector("a", self.words[0])}, %X, %p{scales};
wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"""


def _place(parameter: int, words: int) -> str:
    return f"ld.param.u64 %o, [p{parameter}]; mad.wide.u32 %o, %i, {4 * words}, %o;\n"


def _registers(letter: str, words: int, parameter: int) -> str:
    loads = "".join(f"ld.global.b32 %{letter}{i}, [%o+{4 * i}];\n" for i in range(words))
    return _place(parameter, words) + loads


def _vector(letter: str, words: int) -> str:
    return "{" + ", ".join(f"%{letter}{i}" for i in range(words)) + "}"


def draw(name: str, words: int, kind: str, numbers: str) -> Array:
    """Random elements of a type, packed into words.

    numbers: "whole" (-4 to 4: every order of a sum gives the same), "normal" (-3 to 3, mostly small), "positive" (their
    sizes), "wide" (times 2^-7 to 2^7), "extreme" (any finite bits), "special" (as normal, some of them zero, NaN,
    infinite, the largest, subnormal). Integers always take all their values.
    """
    each = 32 // BITS[kind]
    raw = random_bits(name, words * each)
    if kind in ("s8", "u8", "s32"):
        return raw[:words].astype(np.uint32)
    if numbers == "extreme":
        return _finite(raw, kind)
    bits = _encoded(_values(raw, numbers), kind)
    if numbers == "special":
        rare = (raw >> np.uint64(20)) % np.uint64(48) == 0
        chosen = np.array(_SPECIAL[kind], bits.dtype)[(raw >> np.uint64(30)) % np.uint64(len(_SPECIAL[kind]))]
        bits = np.where(rare, chosen, bits)
    return np.ascontiguousarray(bits).view(np.uint32)


def _values(raw: Array, numbers: str) -> Array:
    """float32 numbers from random bits; the sum of three even ones is nearly normal."""
    if numbers == "whole":
        return (raw % np.uint64(9)).astype(np.float32) - np.float32(4)
    thirds = [(raw >> np.uint64(shift) & np.uint64(0xFFFF)).astype(np.float64) for shift in (0, 16, 32)]
    value = (thirds[0] + thirds[1] + thirds[2]) / 32768 - 3
    if numbers == "positive":
        value = np.abs(value)
    if numbers == "wide":
        value = np.ldexp(value, ((raw >> np.uint64(48)) % np.uint64(15)).astype(np.int32) - 7)
    return value.astype(np.float32)


# NaN, -NaN, Inf, -Inf, 0, -0, the largest, the smallest and the largest subnormal
_SPECIAL = {
    "f16": (0x7E00, 0xFE01, 0x7C00, 0xFC00, 0, 0x8000, 0x7BFF, 1, 0x83FF),
    "bf16": (0x7FC0, 0xFFC1, 0x7F80, 0xFF80, 0, 0x8000, 0x7F7F, 1, 0x807F),
    "tf32": (0x7FC00000, 0xFFC02000, 0x7F800000, 0xFF800000, 0, 0x80000000, 0x7F7FE000, 0x2000, 0x807FE000),
    "f32": (0x7FC00000, 0xFFC00001, 0x7F800000, 0xFF800000, 0, 0x80000000, 0x7F7FFFFF, 1, 0x807FFFFF),
    "e4m3": (0x7F, 0xFF, 0x7E, 0xFE, 0, 0x80, 0x7E, 1, 0x87),
    "e5m2": (0x7E, 0xFF, 0x7C, 0xFC, 0, 0x80, 0x7B, 1, 0x83),
}
_MANTISSA = {"f16": 10, "bf16": 7, "tf32": 23, "f32": 23, "e5m2": 2, "e4m3": 0}


def _finite(raw: Array, kind: str) -> Array:
    """Any bits that stand for a finite number."""
    storage = np.dtype(f"u{BITS[kind] // 8}")
    bits = (raw >> np.uint64(64 - BITS[kind])).astype(storage)
    top = storage.type((1 << BITS[kind] - 1) - (1 << _MANTISSA[kind]))  # all bits of the exponent (e4m3: of NaN)
    bits = np.where(bits & top == top, bits ^ storage.type(1 << _MANTISSA[kind]), bits)
    return (bits.view(np.uint32) & (TF32_MASK if kind == "tf32" else np.uint32(0xFFFFFFFF))).astype(np.uint32)


def _encoded(value: Array, kind: str) -> Array:
    if kind in ("e4m3", "e5m2"):
        return np.asarray(to_float8(value, kind))
    if kind == "tf32":
        return value.view(np.uint32) & TF32_MASK
    return np.asarray(from_float(value, kind))
