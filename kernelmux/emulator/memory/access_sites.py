"""Which instruction made an access: remembered as a number, so that a race can name both of its lines."""

from __future__ import annotations

import sys
from types import CodeType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelmux.emulator.analysis.flow import Step
    from kernelmux.emulator.running.chunk_protocol import Chunk, CompiledFunction
    from kernelmux.emulator.running.group import Group

UNKNOWN = 0
BITS = 16  # of a number
GENERATED = "block"  # the name of every function that `codegen` makes


class Sites:
    """Numbers of the instructions that have accessed memory in one launch."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self._seen: list[tuple[CompiledFunction, CodeType, int]] = []

    def here(self, run: Chunk) -> int:
        """The number of the instruction that is running: where the generated code has got to."""
        frame: Any = sys._getframe(2)
        while frame is not None and frame.f_code.co_name is not GENERATED:
            frame = frame.f_back
        if frame is None:
            return UNKNOWN
        code, at = frame.f_code, frame.f_lasti  # asking for the line would search a table
        number = self._numbers.get((id(code), at))
        return number if number is not None else self._enter(run, code, at)

    def _enter(self, run: Chunk, code: CodeType, at: int) -> int:
        if len(self._seen) + 1 >= 1 << BITS or id(code) not in run.activation.program.compiler.steps_of:
            return UNKNOWN
        self._seen.append((run.activation.program, code, at))  # holds the code, and so its id
        number = self._numbers[id(code), at] = len(self._seen)
        return number

    def step(self, number: int) -> Step | None:
        """The instruction of a number."""
        if number == UNKNOWN:
            return None
        program, code, at = self._seen[number - 1]
        line = next((line for start, end, line in code.co_lines() if start <= at < end), None)
        return None if line is None else program.flow.steps[program.compiler.steps_of[id(code)][line - 1]]


def sites(group: Group) -> Sites:
    """The numbers of the launch that a group belongs to."""
    return group.run.access.writers.history.sites  # type: ignore[no-any-return]


class Trail:
    """The latest accesses of shared memory by the lanes of a chunk, as long as there is room."""

    LONGEST = 1 << 24  # bytes
    ENTRY = 200

    def __init__(self) -> None:
        self._log: list[tuple[bool, Any, Any, int]] = []
        self._held = 0

    def clear(self) -> None:
        """All of them lie before a barrier of all blocks."""
        self._log, self._held = [], 0

    def note(self, write: bool, stamps: Any, spot: Any, number: int) -> None:
        """An access of lanes with these stamps."""
        shared = bool(self._log) and self._log[-1][2].rows is spot.rows
        self._held += self.ENTRY + (0 if shared else getattr(spot.rows, "nbytes", 0))
        if self._held > self.LONGEST:
            self.clear()
        self._log.append((write, stamps, spot, number))

    def find(self, write: bool, stamp: int, byte: int) -> int:
        """The number of the last access by the lane with that stamp to that byte, windows end to end."""
        for kind, stamps, spot, number in reversed(self._log):
            if kind is write:
                first = (spot.start + spot.rows) * spot.size
                if ((stamps == stamp) & (first <= byte) & (byte < first + spot.size)).any():
                    return int(number)
        return UNKNOWN
