"""Exchange inside a warp: shfl, vote, match, redux, activemask, elect."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmux.emulator.arithmetic.floats import NAN
from kernelmux.emulator.ops import Action, not_emulated, operation
from kernelmux.emulator.ops.atomic import REDUCTIONS
from kernelmux.emulator.ptx.dtypes import dtype_of
from kernelmux.emulator.ptx.operands import SINK, Pair
from kernelmux.emulator.ptx.parser import Instruction
from kernelmux.emulator.running.group import Group
from kernelmux.emulator.running.warps import EVERY, lane_bits

F4, U4, I4, I8 = (np.dtype(t) for t in ("f4", "u4", "i4", "i8"))


def _results(target: Any) -> tuple[Any, Any]:
    return (target.first, target.second) if isinstance(target, Pair) else (target, SINK)


@operation("shfl.sync")
def shuffle(ins: Instruction) -> Action:
    target, value, lane, clamp, mask = ins.operands
    first, second = _results(target)
    inputs = ((value, U4), (lane, U4), (clamp, U4), (mask, U4))
    mode = ins.modifiers[1]

    def run(group: Group, value: Any, lane: Any, clamp: Any, mask: Any) -> tuple[Any, Any]:
        return _shuffle(group, mode, value, lane, clamp, mask)

    return Action(run, inputs, ((first, U4), (second, bool)), scope="members", members=3)


def _shuffle(group: Group, mode: str, value: Any, operand: Any, clamp: Any, mask: Any) -> tuple[Any, Any]:
    if value.__class__ is not np.ndarray and _complete(group, mask):
        return value, _source(mode, group.lane, operand, clamp)[1]
    source, inside = _source(mode, group.lane, operand, clamp)
    source = np.where(inside, source, group.lane)
    if _complete(group, mask):
        return group.full(value)[source + (np.arange(group.n) & ~31)], inside
    position = _positions(group, source, mask)
    return group.full(value)[position], inside


def _complete(group: Group, mask: Any) -> bool:
    """Whether whole warps shuffle: every source is there."""
    return group.lanes.whole_warps and mask.__class__ is not np.ndarray and mask == EVERY


def _source(mode: str, lane: np.ndarray, operand: Any, clamp: Any) -> tuple[Any, Any]:
    """The lane to read from, and whether it is in range.

    clamp holds a segment mask in bits 8 to 12 and a bound in bits 0 to 4.
    """
    operand = operand.astype(I8) & 31
    clamp = clamp.astype(I8)
    segment, bound = clamp >> 8 & 31, clamp & 31
    lowest = lane & segment
    highest = lowest | (bound & ~segment)
    if mode == "up":
        source = lane - operand
        return source, source >= highest
    source = {"down": lane + operand, "bfly": lane ^ operand, "idx": lowest | (operand & ~segment)}[mode]
    return source, source <= highest


def _positions(group: Group, source: np.ndarray, mask: Any) -> np.ndarray:
    """Where in the group the source lanes are; fails if one does not take part."""
    named = (lane_bits(source) & mask) != 0
    wanted = group.index - group.lane + source
    position: np.ndarray = np.minimum(np.searchsorted(group.index, wanted), group.n - 1)
    missing = (group.index[position] != wanted) | ~named
    if missing.any():
        at = int(source[np.flatnonzero(missing)[0]])
        group.fail("divergence", f"shuffle from lane {at}, which does not take part in it", missing)
    return position


def _per_warp(group: Group, bits: np.ndarray, ufunc: np.ufunc = np.bitwise_or) -> np.ndarray:
    """`bits` combined over the lanes of each warp that are in the group, given to all of them."""
    if group.lanes.whole_warps:
        return ufunc.reduce(bits.reshape(-1, 32), axis=1, dtype=bits.dtype).repeat(32)  # type: ignore[no-any-return]
    return ufunc.reduceat(bits, group.lanes.warp_starts, dtype=bits.dtype)[group.lanes.warp_rank]  # type: ignore[no-any-return]


def _classes(group: Group, mask: Any) -> np.ndarray | None:
    """Lanes of one warp may take part with different masks; None if there is one mask for all."""
    return None if mask.__class__ is not np.ndarray or (mask == mask[0]).all() else mask


def _voters(group: Group, chosen: np.ndarray, mask: Any) -> np.ndarray:
    """Bits of the lanes of each warp where `chosen` holds, among those that the lane's mask names."""
    bits = _per_warp(group, np.where(chosen, lane_bits(group.lane), np.uint32(0)))
    return bits & mask  # type: ignore[no-any-return]


@operation("vote.sync")
def vote(ins: Instruction) -> Action:
    target, predicate, mask = ins.operands
    mode = ins.modifiers[1]
    dtype = U4 if mode == "ballot" else np.dtype(bool)

    def run(group: Group, predicate: Any, mask: Any) -> Any:
        chosen = group.full(predicate)
        yes = _voters(group, chosen, mask)
        if mode == "ballot":
            return yes
        if mode == "any":
            return yes != 0
        no = _voters(group, ~chosen, mask)
        return no == 0 if mode == "all" else (yes == 0) | (no == 0)

    return Action(run, ((predicate, bool), (mask, U4)), ((target, dtype),), scope="members", members=1)


@operation("match")
def match(ins: Instruction) -> Action:
    target, value, mask = ins.operands
    first, second = _results(target)
    everyone = ins.has("all")

    def run(group: Group, value: Any, mask: Any) -> tuple[Any, Any]:
        same = _equal_lanes(group, group.full(value)) & mask
        if not everyone:
            return same, np.True_
        members = _voters(group, np.ones(group.n, bool), mask)
        agree = same == members
        return np.where(agree, members, np.uint32(0)), agree

    inputs = ((value, dtype_of(ins.type)), (mask, U4))
    return Action(run, inputs, ((first, U4), (second, bool)), scope="members", members=1)


def _equal_lanes(group: Group, value: np.ndarray) -> np.ndarray:
    """Bits of the lanes of the same warp with an equal value."""
    order = np.lexsort((value, group.warp))
    new = np.ones(group.n, bool)
    new[1:] = (np.diff(group.warp[order]) != 0) | (value[order][1:] != value[order][:-1])
    bits = np.bitwise_or.reduceat(lane_bits(group.lane)[order], np.flatnonzero(new))
    result = np.empty(group.n, U4)
    result[order] = bits[np.cumsum(new) - 1]
    return result


@operation("redux.sync")
def reduce(ins: Instruction) -> Action:
    target, value, mask = ins.operands
    dtype = dtype_of(ins.type)
    if dtype == F4 and ins.modifiers[1] in ("min", "max"):
        return _reduce_floats(ins, REDUCTIONS[ins.modifiers[1]])
    ufunc = REDUCTIONS.get(ins.modifiers[1])
    if ufunc is None or dtype.kind == "f":
        raise not_emulated(ins)

    def run(group: Group, value: Any, mask: Any) -> Any:
        value = group.full(value)
        if _classes(group, mask) is None:
            return _per_warp(group, value, ufunc)
        return _reduce_classes(group, value, mask, ufunc)

    return Action(run, ((value, dtype), (mask, U4)), ((target, dtype),), scope="members", members=1)


def _reduce_floats(ins: Instruction, ufunc: np.ufunc) -> Action:
    """min and max of float32: of the magnitudes with .abs; a NaN wins with .NaN, and otherwise loses to every number."""
    target, value, mask = ins.operands
    highest = ins.has("NaN") == (ins.modifiers[1] == "max")
    nan = np.iinfo(I4).max if highest else np.iinfo(I4).min  # where a NaN stands in the order of the integers

    def run(group: Group, value: Any, mask: Any) -> Any:
        value = group.full(value)
        bits = (np.abs(value) if ins.has("abs") else value).view(I4)
        keys = np.where(np.isnan(value), I4.type(nan), _mirrored(bits))
        mixed = _classes(group, mask) is not None
        found = _reduce_classes(group, keys, mask, ufunc) if mixed else _per_warp(group, keys, ufunc)
        return np.where(found == nan, NAN, _mirrored(found).view(F4))

    return Action(run, ((value, F4), (mask, U4)), ((target, F4),), scope="members", members=1)


def _mirrored(bits: Any) -> Any:
    """The bits of float32 numbers as integers that are in the same order, and back."""
    return bits ^ (bits >> 31 & 0x7FFFFFFF)


def _reduce_classes(group: Group, value: np.ndarray, mask: np.ndarray, ufunc: np.ufunc) -> np.ndarray:
    """Lanes of a warp in several sets, each with its own mask."""
    order = np.lexsort((mask, group.warp))
    new = np.ones(group.n, bool)
    new[1:] = (np.diff(group.warp[order]) != 0) | (mask[order][1:] != mask[order][:-1])
    result = np.empty_like(value)
    result[order] = ufunc.reduceat(value[order], np.flatnonzero(new), dtype=value.dtype)[np.cumsum(new) - 1]
    return result


@operation("activemask")
def active_mask(ins: Instruction) -> Action:
    def run(group: Group) -> Any:
        return _per_warp(group, lane_bits(group.lane))

    return Action(run, (), ((ins.operands[0], U4),))


@operation("elect.sync")
def elect(ins: Instruction) -> Action:
    """One lane of each warp: the lowest that takes part."""
    first, second = _results(ins.operands[0])

    def run(group: Group, mask: Any) -> tuple[Any, Any]:
        present = _voters(group, np.ones(group.n, bool), mask)
        lowest = present & (~present + np.uint32(1))
        leader = np.bitwise_count(lowest - np.uint32(1)).astype(U4)
        return leader, leader == group.lane.astype(U4)

    return Action(run, ((ins.operands[1], U4),), ((first, U4), (second, bool)), scope="members", members=0)
