"""Imports every operation module of this folder, so that their builders are registered."""

from __future__ import annotations

import pkgutil
from functools import lru_cache
from importlib import import_module

from kernelmux.emulator import ops
from kernelmux.emulator.ptx.parser import Instruction


@lru_cache(maxsize=1)
def load_all() -> None:
    """Imports the operation modules."""
    for module in pkgutil.iter_modules(ops.__path__):
        import_module(f"{ops.__name__}.{module.name}")


def build(instruction: Instruction) -> ops.Action:
    """The action of one instruction; raises `Unsupported` for what is not emulated."""
    load_all()
    builder = ops.find(instruction.opcode)
    if builder is None:
        raise ops.not_emulated(instruction)
    return builder(instruction)
