"""128-bit registers: mov, ld and st of .b128, and what atom needs of them; a value is 16 bytes of every lane, (n, 16)."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.ops import Action, address
from kernelmux.emulator.ptx.operands import Register, Vector
from kernelmux.emulator.ptx.parser import Instruction
from kernelmux.emulator.running.group import Group

TYPE = "b128"
BYTES, U8 = 16, np.dtype("u8")
WHOLE = np.dtype("V16")  # the element of an array, compared as bytes


def halves(group: Group, value: Any) -> np.ndarray:
    """A register's value as rows of two 64-bit words; one that was never written is all ones."""
    if np.ndim(value) < 2:
        return np.full((group.n, 2), ~np.uint64(0))
    return np.ascontiguousarray(value).view(U8)


def from_words(words: Any) -> np.ndarray:
    """The value of a register from rows of two 64-bit words."""
    return np.ascontiguousarray(words).view(np.uint8).reshape(-1, BYTES)


def slot(operand: Any) -> tuple[Any, None]:
    """The slot of a 128-bit register."""
    if not isinstance(operand, Register) or operand.type != TYPE:
        raise Unsupported("expected a register of 128 bits")
    return (operand, None)


def move(ins: Instruction) -> Action:
    """`mov.b128 d, {low, high}`, `mov.b128 {low, high}, a`, `mov.b128 d, a`."""
    target, source = ins.operands
    if isinstance(source, Vector):
        return Action(_pack, tuple((item, U8) for item in source.items), (slot(target),))
    if isinstance(target, Vector):
        return Action(_unpack, (slot(source),), tuple((item, U8) for item in target.items))
    return Action(lambda group, value: from_words(halves(group, value)), (slot(source),), (slot(target),))


def _pack(group: Group, low: Any, high: Any) -> np.ndarray:
    return from_words(np.stack([group.full(low), group.full(high)], axis=1))


def _unpack(group: Group, value: Any) -> tuple[Any, Any]:
    words = halves(group, value)
    return words[:, 0].copy(), words[:, 1].copy()


def load(ins: Instruction) -> Action:
    """`ld{.weak, .relaxed, ..}{.global, ..}.b128 d, [p]`: one access of 16 bytes."""

    def run(group: Group, where: Any) -> np.ndarray:
        return from_words(np.broadcast_to(group.load(ins.space, where, U8, count=2), (group.n, 2)))

    return Action(run, (address(ins.operands[1]),), (slot(ins.operands[0]),))


def store(ins: Instruction) -> Action:
    """`st.b128 [p], a`."""

    def run(group: Group, where: Any, value: Any) -> None:
        group.store(ins.space, group.full(where), halves(group, value))

    return Action(run, (address(ins.operands[0]), slot(ins.operands[1])))
