"""cvt: between integers, floats of all widths, tf32 and 8-bit floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernelmux.emulator.arithmetic.directed_rounding import directed, stepped, vanishes, whole_lost
from kernelmux.emulator.arithmetic.float8 import from_float8, to_float8
from kernelmux.emulator.arithmetic.floats import flush, from_bf16, round_to_odd_float, to_bf16, to_f16, to_odd
from kernelmux.emulator.ops import Action, not_emulated, operation
from kernelmux.emulator.ops.floating import canonical, saturate
from kernelmux.emulator.ops.pairs import halves, joined
from kernelmux.emulator.ptx.dtypes import dtype_of
from kernelmux.emulator.ptx.parser import Instruction

F2, F4, F8, U1, U2, U4 = (np.dtype(t) for t in ("f2", "f4", "f8", "u1", "u2", "u4"))
INTEGRAL = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
FLOATS = ("f16", "bf16", "f32", "f64", "tf32")
MODIFIERS = {*INTEGRAL, "rn", "rz", "rm", "rp", "rna", "ftz", "sat", "relu", "satfinite"}


@operation("cvt")
def convert(ins: Instruction) -> Action:
    target, source = ins.modifiers[-2:]
    if not set(ins.modifiers[:-2]) <= MODIFIERS:
        raise not_emulated(ins)
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
    """64-bit integers go through a float64 made odd, or keep what float64 lost, so that nothing is rounded twice."""
    mode, wide = _mode(ins), dtype_of(source).itemsize == 8
    if mode == "rn" and target in ("f32", "f64"):
        return f"{{0}}.astype(F{dtype_of(target).itemsize})"
    if target == "f64":
        return (lambda v: stepped(*whole_lost(v), mode)) if wide else lambda v: v.astype(F8)
    return lambda v: narrow(to_odd(*whole_lost(v)) if wide else v.astype(F8), target, mode)


def _float_to_integer(ins: Instruction, target: str, source: str) -> Callable[[Any], Any]:
    """Rounded to an integer, clamped to the type. NaN gives 0; to or from 64 bits the highest bit (seen on an H200)."""
    dtype = dtype_of(target)
    rounding = INTEGRAL[next(m for m in ins.modifiers if m in INTEGRAL)]
    limits = np.iinfo(dtype)
    low, high = float(limits.min), float(limits.max)
    undefined = 1 << 8 * dtype.itemsize - 1 if dtype.itemsize == 8 or source == "f64" else 0
    nothing = np.array(undefined, f"u{dtype.itemsize}").view(dtype)[()]

    def run(value: Any) -> Any:
        number = rounding(_as_float(value, source, ins).astype(F8))
        top, nan = number >= high, np.isnan(number)
        inside = np.where(nan | top, 0.0, np.maximum(number, low)).astype(dtype)
        result = np.where(top, dtype.type(limits.max), inside)
        return np.where(nan, nothing, result)[()] if undefined and np.any(nan) else result[()]

    return run


def _as_float(value: Any, kind: str, ins: Instruction) -> Any:
    value = from_bf16(value) if kind == "bf16" else value
    return flush(value) if ins.has("ftz") and kind == "f32" else value


def _mode(ins: Instruction) -> str:
    return next((m for m in ins.modifiers if m in ("rz", "rm", "rp", "rna")), "rn")


_PLAIN: dict[tuple[str, str], Callable[[Any], Any] | str] = {
    **{("f16", to): f"{{0}}.astype(F{size})" for to, size in (("f32", 4), ("f64", 8))},
    **{("f32", "f64"): "{0}.astype(F8)", ("bf16", "f32"): "from_bf16({0})", ("f64", "f32"): "{0}.astype(F4)"},
    **{("f32", "f16"): to_f16, ("f64", "f16"): to_f16, ("f32", "bf16"): to_bf16},
}


def _float_to_float(ins: Instruction, target: str, source: str) -> Callable[[Any], Any] | str:
    changes = {*INTEGRAL, "rz", "rm", "rp", "ftz", "sat", "relu", "satfinite"} & set(ins.modifiers)
    if not changes and (source, target) in _PLAIN:
        return _PLAIN[source, target]
    mode, finite = _mode(ins), ins.has("satfinite")
    integral = next((INTEGRAL[m] for m in ins.modifiers if m in INTEGRAL), None)
    narrows = source == "f64" and target == "f32" and ins.has("ftz")

    def run(value: Any) -> Any:
        number = _as_float(value, source, ins)
        if integral is not None:
            number = integral(number)
        number = _limited(ins, number)
        if source in ("f16", "f32") and target != "tf32":
            number = canonical(number)
        result = narrow(number, target, mode, finite)
        if source == "f16" and target == "f32":
            result = canonical(result)
        return np.where(vanishes(number, mode), np.copysign(F4.type(0), result), result)[()] if narrows else result

    return run


def _limited(ins: Instruction, value: Any) -> Any:
    if ins.has("sat"):
        value = saturate(value)
    return np.where(value <= 0, value.dtype.type(0), value)[()] if ins.has("relu") else value


def narrow(value: Any, target: str, mode: str, finite: bool = False) -> Any:
    """A float value rounded to `target`; bf16 and tf32 as bits."""
    if target == "tf32":
        return _finite_tf32(_to_tf32(value, mode)) if finite else _to_tf32(value, mode)
    if target == "bf16":
        return _finite_bf16(_to_bf16(value, mode)) if finite else _to_bf16(value, mode)
    dtype = dtype_of(target)
    if mode in ("rz", "rm", "rp"):
        result = directed(value.astype(F8), mode, dtype)
    else:
        result = to_f16(value) if dtype == F2 else value.astype(dtype)
    return np.clip(result, F2.type(-65504), F2.type(65504)) if finite and dtype == F2 else result


def _to_bf16(value: Any, mode: str) -> Any:
    """The upper half of a float32, rounded. Of a float64 that is NaN the upper bits stay."""
    whole = value.dtype == F8
    value = round_to_odd_float(value) if whole else value.astype(F4, copy=False)
    if mode == "rn" and not (whole and np.any(np.isnan(value))):
        return to_bf16(value)
    bits = value.view(U4)
    upper = bits >> np.uint32(16)
    if mode == "rn":
        rounded = to_bf16(value)
    else:
        away = {"rz": 2, "rm": 1, "rp": 0}[mode]  # the sign of the numbers that grow
        rounded = upper + (((bits & np.uint32(0xFFFF)) != 0) & (bits >> np.uint32(31) == away))
    return np.where(np.isnan(value), upper if whole else 0x7FFF, rounded).astype(U2)[()]


def _to_tf32(value: Any, mode: str) -> Any:
    """The upper 19 bits: ties away from zero ("rna"), to even ("rn"), or cut ("rz")."""
    bits, upper = value.view(U4), np.uint32(0xFFFFE000)
    if mode == "rna":
        rounded = bits + np.uint32(0x1000)
    elif mode == "rn":
        rounded = bits + (np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1)))
    else:
        rounded = bits
    nan = bits if mode == "rna" else np.uint32(0x7FFFFFFF)
    return (np.where(np.isnan(value), nan, rounded) & upper).view(F4)[()]


def _finite_bf16(bits: Any) -> Any:
    """.satfinite: infinities become the largest number."""
    return bits - (bits & U2.type(0x7FFF) == U2.type(0x7F80)).astype(U2)


def _finite_tf32(value: Any) -> Any:
    largest = np.copysign(np.uint32(0x7F7FE000).view(F4), value)
    return np.where(np.isinf(value), largest, value)[()]


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
    raise not_emulated(ins)


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
        if kind == "f16" and (mode != "rn" or ins.has("relu")):
            rows = canonical(rows)
        if kind in ("e4m3", "e5m2"):
            return _bytes(to_float8(rows, kind), scalar)
        return joined(narrow(rows, kind, mode, ins.has("satfinite")), scalar)

    result = U2 if kind in ("e4m3", "e5m2") else U4
    return Action(run, tuple((o, F4) for o in ins.operands[1:3]), ((ins.operands[0], result),), pure=True)
