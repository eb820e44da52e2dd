"""Operations that share a name but not a type: `add.s32`, `add.f32`, `add.bf16x2` live in different modules."""

from __future__ import annotations

from collections.abc import Callable

from kernelmux.emulator.ops import OPERATIONS, Action, Builder, not_emulated
from kernelmux.emulator.ptx.parser import Instruction

_TYPED: dict[str, dict[str, Builder]] = {}


def by_type(name: str, *types: str) -> Callable[[Builder], Builder]:
    """Registers a builder for `name` with one of these types as last modifier, or two of them ("f32.bf16")."""

    def register(builder: Builder) -> Builder:
        table = _TYPED.setdefault(name, {})
        table.update(dict.fromkeys(types, builder))
        OPERATIONS[name] = _chooser(name, table)
        return builder

    return register


def types(name: str) -> tuple[str, ...]:
    """The types that an operation is registered for, empty for operations without a choice by type."""
    return tuple(_TYPED.get(name, ()))


def _chooser(name: str, table: dict[str, Builder]) -> Builder:
    def build(ins: Instruction) -> Action:
        builder = table.get(".".join(ins.modifiers[-2:])) or table.get(ins.type)
        if builder is None:
            raise not_emulated(ins, f"{name} has no type .{ins.type} here")
        return builder(ins)

    return build
