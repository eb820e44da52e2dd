"""Asynchronous work that is not in order when a kernel has ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernelmux.emulator.errors import EmulatorError
from kernelmux.emulator.ptx.parser import Instruction


@dataclass(frozen=True)
class _Step:
    """What an error wants to know of the place it happened at."""

    instruction: Instruction


def never_waited_for(run: Any, ins: Instruction, lane: int, what: str) -> EmulatorError:
    """The error for an instruction of `lane` (number in the chunk) whose effect was still under way at the end."""
    return at_the_end(run, ins, lane, f"the kernel ended and no thread had waited for {what}")


def at_the_end(run: Any, ins: Instruction, lane: int, message: str) -> EmulatorError:
    """The error for something that an instruction of `lane` left behind."""
    block, thread = run.geometry.coordinates(lane)
    error: EmulatorError = run.access.error("asynchronous", message, run.access.kernel, _Step(ins), block, thread)
    return error
