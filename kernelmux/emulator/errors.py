"""What the emulator raises: one public error that names the source line, the block, the thread and the instruction."""

from __future__ import annotations

from typing import Any

KINDS = (
    "argument",  # the launch itself is wrong: sizes, limits, types
    "out of bounds",
    "misaligned",
    "bad pointer",
    "uninitialised",
    "race",
    "divergence",
    "deadlock",
    "asynchronous",  # a copy, mbarrier or wgmma used against its rules
    "time limit",
    "trap",  # trap, failed device assert
    "call stack",
    "unsupported",
)

Triple = tuple[int, int, int]


class EmulatorError(RuntimeError):
    """A kernel did something that is an error on a GPU, or used something that is not emulated.

    kind is one of `KINDS`. file and line are those of the CUDA or Python source, None without line information;
    inlined are the call sites of inlined functions, innermost first. block and thread are coordinates, None where no
    single thread is meant. values are those of the registers that the instruction reads, in that thread. earlier is the
    file and line of the access that a race is with, where it is known.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str = "unsupported",
        kernel: str | None = None,
        file: str | None = None,
        line: int | None = None,
        inlined: tuple[tuple[str, int], ...] = (),
        block: Triple | None = None,
        thread: Triple | None = None,
        instruction: str | None = None,
        values: dict[str, str] | None = None,
        earlier: tuple[str, int] | None = None,
    ) -> None:
        self.message, self.kind, self.kernel = message, kind, kernel
        self.file, self.line, self.inlined = file, line, inlined
        self.block, self.thread, self.instruction, self.values = block, thread, instruction, values or {}
        self.earlier = earlier
        super().__init__(self._text())

    def _text(self) -> str:
        place = f"{self.file}:{self.line}: " if self.file and self.line else ""
        text = f"{place}{self.kind}: {self.message}"
        text += f" at {self.earlier[0]}:{self.earlier[1]}" if self.earlier else ""
        where = [f"kernel {self.kernel}"] if self.kernel else []
        where += [f"block {_triple(self.block)}"] if self.block is not None else []
        where += [f"thread {_triple(self.thread)}"] if self.thread is not None else []
        text += f"\n  in {', '.join(where)}" if where else ""
        text += f"\n  instruction: {self.instruction}" if self.instruction else ""
        text += (
            "\n  with " + ", ".join(f"{name} = {value}" for name, value in self.values.items()) if self.values else ""
        )
        return text + "".join(f"\n  inlined at {file}:{line}" for file, line in self.inlined)


class Unsupported(EmulatorError):
    """An instruction, modifier or directive that the emulator does not implement."""


class LaunchRefused(EmulatorError):
    """A launch that no driver takes: more threads or shared memory than a block may have, or another grid or cluster."""


class Fault(Exception):
    """Raised while lanes run, before the place is known; the executor turns it into an `EmulatorError`.

    lane is the lane number inside the chunk, None where the whole group is meant. earlier is the step of the access
    that a race is with, None if unknown.
    """

    def __init__(
        self, kind: str, message: str, lane: int | None = None, instruction: Any = None, earlier: Any = None
    ) -> None:
        super().__init__(message)
        self.kind, self.message, self.lane, self.instruction = kind, message, lane, instruction
        self.earlier = earlier


def _triple(value: Triple) -> str:
    return "(" + ",".join(str(v) for v in value) + ")"
