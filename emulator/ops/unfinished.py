"""Asynchronous work that nobody waited for, found when a kernel has ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernelmux.emulator.errors import EmulatorError
from kernelmux.emulator.parser import Instruction


@dataclass(frozen=True)
class _Step:
    """What an error wants to know of the place it happened at."""

    instruction: Instruction


def never_waited_for(run: Any, ins: Instruction, lane: int, what: str) -> EmulatorError:
    """The error for an instruction of `lane` (number in the chunk) whose effect was still under way at the end."""
    block, thread = run.geometry.coordinates(lane)
    message = f"the kernel ended and nobody had waited for {what}"
    error: EmulatorError = run.access.error("asynchronous", message, run.access.kernel, _Step(ins), block, thread)
    return error
