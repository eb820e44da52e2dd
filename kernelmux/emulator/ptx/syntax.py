"""What a PTX module consists of, parsed: functions, instructions, variables, parameters."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from kernelmux.emulator.ptx.operands import Operand, Register

SPACES = ("global", "shared", "local", "param", "const")


@dataclass(frozen=True)
class Location:
    """A source line, and the call sites it was inlined at, innermost first."""

    file: int
    line: int
    inlined: tuple[tuple[int, int], ...] = ()


@cache
def _parts(opcode: str) -> tuple[str, tuple[str, ...]]:
    name, *modifiers = opcode.split(".")
    return name, tuple(modifiers)


class Instruction:
    """One PTX instruction: `@guard name.modifiers operands`."""

    __slots__ = ("guard", "location", "modifiers", "name", "opcode", "operands", "text")

    def __init__(
        self, opcode: str, operands: tuple[Operand, ...], guard: Register | None, text: str, location: Location | None
    ) -> None:
        self.opcode, self.operands, self.guard, self.text, self.location = opcode, operands, guard, text, location
        self.name, self.modifiers = _parts(opcode)

    def has(self, modifier: str) -> bool:
        """Whether this modifier is there."""
        return modifier in self.modifiers

    @property
    def type(self) -> str:
        """The last modifier: the type of the operands in most instructions. Compilers write `max.s16x2.relu` too."""
        return self.modifiers[-1] if self.modifiers[-1] != "relu" else self.modifiers[-2]

    @property
    def space(self) -> str:
        """The state space named by the modifiers; "generic" without one."""
        return next((m.split("::")[0] for m in self.modifiers if m.split("::")[0] in SPACES), "generic")


@dataclass(frozen=True)
class Variable:
    """A variable in memory; initial holds the words of its initialiser."""

    name: str
    space: str
    type: str
    align: int
    size: int
    initial: tuple[str, ...] = ()


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel or function: size and alignment in bytes."""

    name: str
    type: str
    size: int
    align: int
    pointer: bool = False


@dataclass
class Function:
    """A kernel or device function."""

    name: str
    entry: bool
    parameters: tuple[Parameter, ...] = ()
    results: tuple[Parameter, ...] = ()
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    registers: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)  # targets of brx.idx
    required_threads: tuple[int, ...] | None = None
    maximum_threads: tuple[int, ...] | None = None
    cluster: tuple[int, ...] = ()  # blocks of a cluster in each dimension


@dataclass
class ParsedModule:
    """A translation unit of PTX."""

    functions: dict[str, Function] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    dynamic_shared: dict[str, int] = field(default_factory=dict)  # name -> alignment
    files: dict[int, str] = field(default_factory=dict)
