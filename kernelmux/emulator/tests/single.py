"""One PTX instruction as a kernel: `run("add.s32 %d0, %a0, %a1;", "b32", ["b32", "b32"], arrays)`."""

from functools import cache
from typing import Any

import numpy as np

from kernelmux.emulator.running.launch import EntryKernel, load
from kernelmux.emulator.settings import checks

BITS = {"b16": np.uint16, "b32": np.uint32, "b64": np.uint64, "pred": np.uint32}


@cache
def kernel(code: str, result: str, operands: tuple[str, ...]) -> EntryKernel:
    """A kernel whose thread i applies `code` to element i of every operand; a predicate is stored as 0 or 1."""
    pointers = [f".param .u64 p{i}" for i in range(len(operands) + 1)]
    load_store = [_load(i, kind) for i, kind in enumerate(operands)]
    registers = "\n".join(f".reg .{kind} %a{i};" for i, kind in enumerate(operands))
    stored = f"st.global.{result} [%q], %d0;"
    if result == "pred":
        stored = "selp.b32 %flag, 1, 0, %d0; st.global.b32 [%q], %flag;"
    return load(
        f"""
.version 9.0
.target sm_90a
.address_size 64
.visible .entry single({", ".join(pointers)})
{{
.reg .{result} %d0; .reg .{result} %d1; {registers}
.reg .b32 %i; .reg .b32 %flag; .reg .b64 %q; .reg .b64 %o; .reg .pred %p;
mov.u32 %i, %tid.x;
{"".join(load_store)}
{code}
{_address(len(operands), result)}
{stored}
ret;
}}
"""
    ).kernel("single")


def _address(i: int, kind: str) -> str:
    return f"ld.param.u64 %q, [p{i}]; mul.wide.u32 %o, %i, {np.dtype(BITS[kind]).itemsize}; add.s64 %q, %q, %o;\n"


def _load(i: int, kind: str) -> str:
    if kind == "pred":
        return _address(i, "b32") + f"ld.global.b32 %flag, [%q]; setp.ne.u32 %a{i}, %flag, 0;\n"
    return _address(i, kind) + f"ld.global.{kind} %a{i}, [%q];\n"


def run(code: str, result: str, operands: list[str], arrays: list[Any]) -> np.ndarray:
    """Results as bits. The arrays are bits too, at most 1024 each; one thread alone takes the path for scalars."""
    bits = [np.ascontiguousarray(a, BITS[k]) for a, k in zip(arrays, operands, strict=True)]
    out = np.zeros(len(bits[0]), BITS[result])
    with checks("full"):
        kernel(code, result, tuple(operands)).launch(1, len(out), [*bits, out])
        alone = np.zeros(1, BITS[result])
        kernel(code, result, tuple(operands)).launch(1, 1, [*(b[:1].copy() for b in bits), alone])
    assert alone[0] == out[0] or (_is_nan(alone[0]) and _is_nan(out[0])), "one lane alone and many lanes must agree"
    return out


def _is_nan(bits: Any) -> bool:
    """Whether the bits could be a NaN, whose other bits do not matter."""
    return bool(np.isnan(bits.view(f"f{bits.itemsize}"))) or (bits.itemsize == 2 and bits & 0x7FFF > 0x7F80)
