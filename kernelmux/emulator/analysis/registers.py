"""The registers of a function: their numbers, and the type in which each is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from kernelmux.emulator.analysis.flow import Flow, Step
from kernelmux.emulator.analysis.subnormal_numbers import never_subnormal
from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.ptx.dtypes import size_of
from kernelmux.emulator.ptx.operands import Address, Register

Votes = dict[str, dict[Any, int]]


class Registers:
    """Numbers and home types of the registers of a function."""

    def __init__(self, flow: Flow) -> None:
        self.number = flow.numbers
        self.home: dict[str, np.dtype[Any]] = {}
        votes: Votes = {}
        for step in flow.steps:
            if step.action is not None and step.name != "mov":
                _vote(votes, step)
        for name in self.number:
            self.home[name] = _home(flow.function.registers[name], votes.get(name, {}))
        self.near = Counter(name for step in flow.steps for name in _near(step))  # accesses close to a register
        self.normal = never_subnormal(flow)
        self.initial = [_unwritten(self.home[name]) for name in self.number]


def _near(step: Step) -> Iterator[str]:
    """The register that an access is a constant away from: see `Action.near`."""
    if step.action is not None and step.action.near:
        for operand, _ in step.action.inputs:
            if isinstance(operand, Address) and isinstance(operand.base, Register):
                yield operand.base.name


def _vote(votes: Votes, step: Step) -> None:
    """Counts the types in which each register is used."""
    assert step.action is not None
    if step.action.bits:
        return
    for operand, dtype in (*step.action.inputs, *step.action.outputs):
        base = operand.base if operand.__class__ is Address else operand
        if base.__class__ is Register and dtype is not None:
            counts = votes.get(base.name)
            if counts is None:
                counts = votes[base.name] = {}
            counts[dtype] = counts.get(dtype, 0) + 1


def _home(ptx_type: str, votes: dict[Any, int]) -> np.dtype[Any]:
    if ptx_type == "pred":
        return np.dtype(bool)
    if ptx_type == "b128":
        ptx_type = "param16"
    if ptx_type.startswith("param"):
        return np.dtype((np.uint8, (int(ptx_type[5:]),)))  # values are (n, size), or a scalar 0 before the first store
    size = size_of(ptx_type)
    if size > 8:
        raise Unsupported(f"registers of type .{ptx_type} are not emulated")
    fitting = [(count, np.dtype(dtype).str) for dtype, count in votes.items()]
    fitting = [(count, name) for count, name in fitting if name[1] != "b" and int(name[2:]) == size]
    return np.dtype(max(fitting)[1]) if fitting else np.dtype(f"u{size}")


def _unwritten(home: np.dtype[Any]) -> Any:
    """What a register holds before the first write: all bits set, which is NaN in every float type."""
    if home.shape or home.kind == "b":
        return home.base.type(0)
    return np.frombuffer(b"\xff" * home.itemsize, home)[0]
