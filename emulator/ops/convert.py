"""cvt: between integers, floats of all widths, tf32 and 8-bit floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.float8 import from_float8, to_float8
from kernelmux.emulator.numeric import directed, double_to_bf16, flush, from_bf16, to_bf16
from kernelmux.emulator.ops import Action, operation
from kernelmux.emulator.ops.pairs import halves, joined
from kernelmux.emulator.parser import Instruction
from kernelmux.emulator.ptx_types import dtype_of

F2, F4, F8, U1, U2, U4 = (np.dtype(t) for t in ("f2", "f4", "f8", "u1", "u2", "u4"))
INTEGRAL = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
FLOATS = ("f16", "bf16", "f32", "f64", "tf32")


@operation("cvt")
def convert(ins: Instruction) -> Action:
    target, source = ins.modifiers[-2:]
    if ins.modifiers[0] == "pack":
        return _pack_integers(ins)
    if target.endswith("x2") or source.endswith("x2"):
        return _convert_pair(ins, target, source)
    run = _converter(ins, target, source)
    if isinstance(run, str):
        return Action(
            code=run,
            inputs=((ins.operands[1], _register(source)),),
            outputs=((ins.operands[0], _register(target)),),
            pure=True,
        )
    return Action(run, ((ins.operands[1], _register(source)),), ((ins.operands[0], _register(target)),), pure=True)


def _register(kind: str) -> np.dtype[Any]:
    return dtype_of(kind)


def _converter(ins: Instruction, target: str, source: str) -> Callable[[Any], Any] | str:
    if source in FLOATS:
        return _float_to_float(ins, target, source) if target in FLOATS else _float_to_integer(ins, target, source)
    if target in FLOATS:
        return _integer_to_float(ins, target, source)
    return _integer_to_integer(ins, target, source)


def _integer_to_integer(ins: Instruction, target: str, source: str) -> Callable[[Any], Any] | str:
    dtype = dtype_of(target)
    if not ins.has("sat"):
        return f"{{0}}.astype({dtype.kind.upper()}{dtype.itemsize})"
    limits, wide = np.iinfo(dtype), np.iinfo(dtype_of(source))
    low, high = max(limits.min, wide.min), min(limits.max, wide.max)
    return lambda v: np.clip(v, v.dtype.type(low), v.dtype.type(high)).astype(dtype)


def _integer_to_float(ins: Instruction, target: str, source: str) -> Callable[[Any], Any] | str:
    mode = _mode(ins)
    if target == "bf16":
        return lambda v: to_bf16(directed(v.astype(F8), mode, F4) if mode != "rn" else _exact(v).astype(F4))
    dtype = dtype_of(target)
    if mode != "rn":
        return lambda v: directed(v.astype(F8), mode, dtype)
    if dtype == F2:
        return lambda v: v.astype(F8).astype(F2)
    return f"{{0}}.astype(F{dtype.itemsize})"


def _exact(value: Any) -> Any:
    return value.astype(F8)


def _float_to_integer(ins: Instruction, target: str, source: str) -> Callable[[Any], Any]:
    """Rounded to an integer, clamped to the type; NaN gives 0."""
    dtype = dtype_of(target)
    rounding = INTEGRAL[next(m for m in ins.modifiers if m in INTEGRAL)]
    limits = np.iinfo(dtype)
    low, high = float(limits.min), float(limits.max)

    def run(value: Any) -> Any:
        number = rounding(_as_float(value, source, ins).astype(F8))
        top = number >= high
        inside = np.where(np.isnan(number) | top, 0.0, np.maximum(number, low))
        return np.where(top, dtype.type(limits.max), inside.astype(dtype))[()]

    return run


def _as_float(value: Any, kind: str, ins: Instruction) -> Any:
    value = from_bf16(value) if kind == "bf16" else value
    return flush(value) if ins.has("ftz") and kind == "f32" else value


def _mode(ins: Instruction) -> str:
    return next((m for m in ins.modifiers if m in ("rz", "rm", "rp")), "rn")


def _float_to_float(ins: Instruction, target: str, source: str) -> Callable[[Any], Any] | str:
    plain = not {"ftz", "sat", "relu", "satfinite"} & set(ins.modifiers)
    if plain and (source, target) in (("f16", "f32"), ("f32", "f64"), ("f16", "f64")):
        return f"{{0}}.astype(F{dtype_of(target).itemsize})"
    integral = next((INTEGRAL[m] for m in ins.modifiers if m in INTEGRAL), None)

    def run(value: Any) -> Any:
        number = _as_float(value, source, ins)
        if integral is not None:
            number = integral(number)
        return narrow(
            _limited(ins, number), target, _mode(ins) if "rna" not in ins.modifiers else "rna", ins.has("satfinite")
        )

    return run


def _limited(ins: Instruction, value: Any) -> Any:
    if ins.has("sat"):
        value = np.fmin(np.fmax(value, value.dtype.type(0)), value.dtype.type(1))
    if ins.has("relu"):
        value = np.where(value < 0, value.dtype.type(0), value)[()]
    return flush(value) if ins.has("ftz") and value.dtype == F4 else value


def narrow(value: Any, target: str, mode: str, finite: bool = False) -> Any:
    """A float value rounded to `target`; bf16 and tf32 as bits."""
    if target == "tf32":
        return _to_tf32(value, mode)
    if target == "bf16":
        if mode == "rz":
            return (value.view(U4) >> np.uint32(16)).astype(U2)
        return double_to_bf16(value) if value.dtype == F8 else to_bf16(value)
    dtype = dtype_of(target)
    result = directed(value.astype(F8), mode, dtype) if mode in ("rz", "rm", "rp") else value.astype(dtype)
    if finite and dtype == F2:
        result = np.clip(result, F2.type(-65504), F2.type(65504))
    return result


def _to_tf32(value: Any, mode: str) -> Any:
    """The upper 19 bits: ties away from zero ("rna"), to even ("rn"), or cut ("rz")."""
    bits = value.view(U4)
    if mode == "rna":
        bits = bits + np.uint32(0x1000)
    elif mode == "rn":
        bits = bits + (np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1)))
    rounded = (bits & np.uint32(0xFFFFE000)).view(F4)
    return np.where(np.isfinite(value), rounded, value)[()]


def _convert_pair(ins: Instruction, target: str, source: str) -> Action:
    if source == "f32":
        return _narrow_pair(ins, target)
    if target in ("f16x2", "bf16x2") and source in ("e4m3x2", "e5m2x2"):
        return Action(
            _widen_float8(source[:4], target[:-2], ins), ((ins.operands[1], U2),), ((ins.operands[0], U4),), pure=True
        )
    if target in ("e4m3x2", "e5m2x2") and source in ("f16x2", "bf16x2"):
        half = F2 if source == "f16x2" else U2

        def run(value: Any) -> Any:
            rows = halves(value, half)
            rows = from_bf16(rows) if half == U2 else rows.astype(F4)
            return _bytes(to_float8(_limited(ins, rows), target[:4]), np.ndim(value) == 0)

        return Action(run, ((ins.operands[1], U4),), ((ins.operands[0], U2),), pure=True)
    raise Unsupported(f"{ins.opcode} is not emulated")


def _bytes(rows: np.ndarray, scalar: bool) -> Any:
    whole = np.ascontiguousarray(rows).view(U2)[:, 0]
    return whole[0] if scalar else whole


def _widen_float8(kind: str, target: str, ins: Instruction) -> Callable[[Any], Any]:
    def run(value: Any) -> Any:
        codes = np.atleast_1d(value).view(U1).reshape(-1, 2)
        rows = narrow(_limited(ins, from_float8(codes, kind)), target, "rn")
        return joined(rows, np.ndim(value) == 0)

    return run


def _narrow_pair(ins: Instruction, target: str) -> Action:
    """Two float32 into one register; the first operand becomes the upper half."""
    kind, mode = target[:-2], _mode(ins)

    def run(high: Any, low: Any) -> Any:
        scalar = not (np.ndim(high) or np.ndim(low))
        rows = np.stack(np.broadcast_arrays(np.atleast_1d(low), np.atleast_1d(high)), axis=1)
        rows = _limited(ins, rows)
        if kind in ("e4m3", "e5m2"):
            return _bytes(to_float8(rows, kind), scalar)
        return joined(narrow(rows, kind, mode, ins.has("satfinite")), scalar)

    result = U2 if kind in ("e4m3", "e5m2") else U4
    return Action(run, tuple((o, F4) for o in ins.operands[1:3]), ((ins.operands[0], result),), pure=True)


def _pack_integers(ins: Instruction) -> Action:
    """cvt.pack.sat: two int32 to narrow integers, above the lower part of c."""
    kind = next(m for m in ins.modifiers[1:] if m != "sat")
    bits = {"u16": 16, "s16": 16, "u8": 8, "s8": 8}.get(kind)
    if bits is None:
        raise Unsupported(f"{ins.opcode} is not emulated")
    limits = np.iinfo(dtype_of(kind))

    def run(a: Any, b: Any, *c: Any) -> Any:
        mask = np.uint32((1 << bits) - 1)
        parts = [np.clip(v, limits.min, limits.max).astype("i4").view(U4) & mask for v in (a, b)]
        packed = (parts[0] << np.uint32(bits)) | parts[1]
        return packed | (c[0] << np.uint32(2 * bits)) if c and bits == 8 else packed

    inputs = [(o, np.dtype("i4")) for o in ins.operands[1:3]] + [(o, U4) for o in ins.operands[3:]]
    return Action(run, tuple(inputs), ((ins.operands[0], U4),), pure=True)
