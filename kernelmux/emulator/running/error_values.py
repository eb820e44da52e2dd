"""What the registers of an instruction held in the thread that failed, for the error's text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from kernelmux.emulator.analysis.flow import Step
from kernelmux.emulator.memory.global_memory import OFFSET, SHIFT
from kernelmux.emulator.ptx.operands import Address, Register

Frame = dict[str, Any]  # the local variables of a block's function: see `codegen`


def values(frame: Frame, numbers: dict[str, int], segments: dict[int, Any], step: Step, lane: int) -> dict[str, str]:
    """Name and value of each register that `step` reads, for the thread `lane` of the chunk.

    numbers: the number of each register; segments: global memory, for pointers, which are shown as elements of tensors.
    """
    position = int(np.searchsorted(frame["G"].index, lane))
    shown = {}
    for register in _read(step):
        value = _value(frame, numbers[register.name], position)
        if value is not None and not value.shape:
            shown[register.name] = _shown(value, segments)
    return shown


def _read(step: Step) -> Iterator[Register]:
    operands = [operand for operand, _ in step.action.inputs] if step.action is not None else []
    for operand in (step.guard, *operands):
        base = operand.base if isinstance(operand, Address) else operand
        if isinstance(base, Register):
            yield base


def _value(frame: Frame, number: int, position: int) -> Any:
    """The value of one lane; None for a register that the block has not loaded."""
    value = frame.get(f"r{number}", frame["R"][number])
    if isinstance(value, np.ndarray) and value.ndim:
        return value[position] if position < len(value) else None
    return value


def _shown(value: Any, segments: dict[int, Any]) -> str:
    if value.dtype.kind == "b":
        return str(bool(value)).lower()
    if value.dtype.kind == "f":
        return repr(float(value))
    number = int(value)
    segment = segments.get(number >> SHIFT) if value.dtype.itemsize == 8 else None
    if segment is None:
        return str(number)
    offset = number & OFFSET
    hull = segment.nearest(offset)
    return f"&{element}" if (element := hull.element(offset - hull.lo)) else f"{hull.name} + {offset - hull.lo} bytes"
