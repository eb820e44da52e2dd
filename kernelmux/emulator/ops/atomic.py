"""atom and red: read-modify-write of one place, lane after lane where several lanes meet."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from kernelmux.emulator.arithmetic.floats import flush, from_bf16, to_bf16
from kernelmux.emulator.memory.global_memory import Elsewhere
from kernelmux.emulator.ops import Action, address, not_emulated, operation, registers
from kernelmux.emulator.ops.floating import larger, smaller
from kernelmux.emulator.ops.pairs import halves, joined
from kernelmux.emulator.ops.wide import WHOLE, from_words, slot
from kernelmux.emulator.ops.wide import halves as halves_of
from kernelmux.emulator.ptx.dtypes import dtype_of
from kernelmux.emulator.ptx.operands import SINK, Operand, Vector
from kernelmux.emulator.ptx.parser import Instruction
from kernelmux.emulator.running.group import Group

Update = Callable[..., Any]
KINDS = ("add", "min", "max", "exch", "cas", "and", "or", "xor", "inc", "dec")
F2, F4, U2 = np.dtype("f2"), np.dtype("f4"), np.dtype("u2")


def _bf16(run: Update) -> Update:
    return lambda old, new: to_bf16(np.asarray(run(from_bf16(old), from_bf16(new))))


def _half(run: Update) -> Update:
    return lambda old, new: run(old.astype(F4), new.astype(F4)).astype(F2)


def _pair(run: Update, half: np.dtype[Any]) -> Update:
    def both(old: Any, new: Any) -> Any:
        return joined(run(halves(old, half), halves(new, half)), scalar=False)

    return both


REDUCTIONS: dict[str, Any] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def update_of(kind: str, ptx_type: str) -> Update:
    """The new value from the old one and the operands."""
    if kind == "exch":
        return lambda old, new: new
    if kind == "cas":
        return lambda old, compare, new: np.where(old == compare, new, old)
    if kind == "inc":
        return lambda old, most: np.where(old >= most, old.dtype.type(0), old + old.dtype.type(1))
    if kind == "dec":
        return lambda old, most: np.where((old == 0) | (old > most), most, old - old.dtype.type(1))
    run = REDUCTIONS[kind]
    if ptx_type.startswith(("f", "bf")) and kind in ("min", "max"):
        run = smaller if kind == "min" else larger
    if ptx_type in ("bf16", "bf16x2"):
        run = _bf16(run)
    if ptx_type in ("f16", "f16x2"):
        run = _half(run)
    return (
        _pair(run, U2 if ptx_type.startswith("b") else F2) if ptx_type.endswith("x2") and ptx_type[0] in "fb" else run
    )


@operation("atom")
def atomic(ins: Instruction) -> Action:
    if ins.type == "b128":
        return _wide(ins)
    target, where, *values = ins.operands
    return _action(ins, target, where, values)


@operation("red")
def reduction(ins: Instruction) -> Action:
    where, *values = ins.operands
    return _action(ins, SINK, where, values)


def _action(ins: Instruction, target: Operand, where: Operand, values: list[Operand]) -> Action:
    kind = next((m for m in ins.modifiers if m in KINDS), None)
    if kind is None:
        raise not_emulated(ins)
    dtype, sources = dtype_of(_type(ins)), 2 if kind == "cas" else 1
    if isinstance(values[0], Vector):
        return _vector(ins, kind, target, where, values[0])
    run = _runner(ins, kind, dtype)
    inputs = (address(where), *((v, dtype) for v in values[:sources]))
    outputs = () if target is SINK else ((target, dtype),)
    effect = _runner(ins, kind, dtype, wanted=False)
    return Action(run if outputs else effect, inputs, outputs, effect=effect)


def _type(ins: Instruction) -> str:
    """The type; vectors of 16-bit floats name it before the operation: `atom.global.v2.f16x2.add.noftz`."""
    return next(m for m in reversed(ins.modifiers) if m != "noftz" and m not in KINDS)


def _vector(ins: Instruction, kind: str, target: Operand, where: Operand, values: Vector) -> Action:
    """Several neighbouring places, each by itself."""
    dtype = dtype_of(_type(ins))
    one = _runner(ins, kind, dtype, wanted=target is not SINK)

    def run(group: Group, place: Any, *values: Any) -> Any:
        return tuple(one(group, place + np.int64(i * dtype.itemsize), value) for i, value in enumerate(values))

    outputs = () if target is SINK else registers(target, dtype)
    return Action(run, (address(where), *registers(values, dtype)), outputs)


def _runner(ins: Instruction, kind: str, dtype: np.dtype[Any], wanted: bool = True) -> Callable[..., Any]:
    update = update_of(kind, _type(ins))
    space = ins.space
    ordered = ins.has("acquire") or ins.has("release") or ins.has("acq_rel")
    at = getattr(update, "at", None) if isinstance(update, np.ufunc) and not wanted else None

    def run(group: Group, place: Any, *values: Any) -> Any:
        if ordered:
            _order(group)
        return _everywhere(group, space, place, dtype, update, at, values)

    return run


def _order(group: Group) -> None:
    """What .acquire and .release do to accesses of others."""
    group.run.shared.synchronise(np.unique(group.block))
    group.run.access.fence(group)


def _wide(ins: Instruction) -> Action:
    """`atom.exch.b128 d, [p], b` and `atom.cas.b128 d, [p], compare, b`."""
    target, where, *values = ins.operands
    kind = next((m for m in ins.modifiers if m in ("exch", "cas")), None)
    if kind is None or len(values) != 1 + (kind == "cas"):
        raise not_emulated(ins, "of 128 bits there are exch and cas")
    run = _runner(ins, kind, WHOLE)

    def run_wide(group: Group, place: Any, *operands: Any) -> np.ndarray:
        wholes = (halves_of(group, value).view(WHOLE)[:, 0] for value in operands)
        return from_words(np.asarray(run(group, group.full(place), *wholes)).view(np.uint64).reshape(-1, 2))

    outputs = () if target is SINK else (slot(target),)
    return Action(run_wide, (address(where), *map(slot, values)), outputs)


def _everywhere(
    group: Group, space: str, place: Any, dtype: np.dtype[Any], update: Update, at: Any, values: tuple[Any, ...]
) -> Any:
    try:
        spot = group.run.access.locate(group, space, place, dtype)
    except Elsewhere as elsewhere:
        return _parts(group, space, place, dtype, update, at, values, elsewhere.number)
    access = group.run.access
    if spot.shared is not None and access.shared.shadow is not None:
        access.shared.shadow.atomic(group, spot.shared)
    rows = np.broadcast_to(spot.rows, (group.n,))
    if update is np.add and dtype == F4 and spot.shared is None:
        if at is None or _may_underflow(values[0]) or _may_underflow(spot.view.take(rows)):
            update, at = _flushed_sum, None
    if at is not None:
        at(spot.view, rows, values[0])
        return None
    return _in_turn(spot.view, rows, update, [group.full(v) for v in values])


def _flushed_sum(old: Any, new: Any) -> Any:
    """In global memory, though not in shared memory, subnormal numbers are zeros in sums (seen on an H200)."""
    return flush(flush(old) + flush(new))


def _may_underflow(value: Any) -> bool:
    """Whether sums could be subnormal: otherwise they are multiples of 2^-125, the last place of 2^-102."""
    size = np.abs(value)
    return bool(np.any((size < F4.type(2.0**-102)) & (size > 0)))


def _parts(
    group: Group, space: str, place: Any, dtype: np.dtype[Any], update: Update, at: Any, values: Any, number: np.ndarray
) -> Any:
    result = np.zeros(group.n, dtype)
    for one in np.unique(number):
        where = np.flatnonzero(number == one)
        some = tuple(group.full(v)[where] for v in values)
        old = _everywhere(group.view_of(where), space, place[where], dtype, update, at, some)
        if old is not None:
            result[where] = old
    return result


def _in_turn(view: np.ndarray, rows: np.ndarray, update: Update, values: list[np.ndarray]) -> np.ndarray:
    """Lanes that meet at one place take turns in lane order; returns what each lane reads."""
    order = np.argsort(rows, kind="stable")
    sorted_rows = rows[order]
    first = np.ones(len(rows), bool)
    first[1:] = sorted_rows[1:] != sorted_rows[:-1]
    starts = np.flatnonzero(first)
    turn = np.arange(len(rows)) - starts[np.cumsum(first) - 1]
    before = np.empty(len(rows), view.dtype)
    by_turn = np.argsort(turn, kind="stable")
    bounds = np.concatenate(([0], np.cumsum(np.bincount(turn))))
    for begin, end in pairwise(bounds):
        lanes = order[by_turn[begin:end]]
        where = rows[lanes]
        old = view[where]
        before[lanes] = old
        view[where] = update(old, *(v[lanes] for v in values))
    return before
