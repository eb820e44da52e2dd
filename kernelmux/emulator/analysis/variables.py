"""Where variables and parameters lie: offsets in shared and local memory, addresses of module variables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.memory.global_memory import FIRST_VARIABLE, FUNCTION, SHIFT, Hull, Segment
from kernelmux.emulator.ptx.dtypes import dtype_of
from kernelmux.emulator.ptx.operands import Address, Immediate, Symbol, TensorAddress, Vector
from kernelmux.emulator.ptx.parser import Function, ParsedModule, Variable

DYNAMIC_ALIGNMENT = 16  # of dynamic shared memory whose declaration asks for less
FUNCTION_STEP = 16  # between the addresses of two functions
GAP = 128  # bytes between two shared variables, so that an overrun of one does not end in the next; all banks once


@dataclass(frozen=True)
class Gap:
    """Bytes low to high (exclusive) behind a shared variable, which belong to no variable."""

    name: str
    low: int
    high: int


class VariableAddresses:
    """The names of one function as addresses; shared memory is that of the kernel it runs for."""

    def __init__(self, module: ParsedModule, kernel: Function, addresses: dict[str, int]) -> None:
        self.module, self.function, self.addresses = module, kernel, addresses
        used = _symbols(module, kernel)
        shared = [v for v in module.variables.values() if v.space == "shared" and v.name in used]
        shared += [v for v in kernel.variables.values() if v.space == "shared"]
        self.static_size = _offsets(shared)[1]
        self.shared, end = _offsets(shared, GAP)
        self._alignment = max((DYNAMIC_ALIGNMENT, *module.dynamic_shared.values()))
        self.static_end, self.dynamic_start = end, _align(end + GAP if end else 0, self._alignment)
        ends = [(v.name, self.shared[v.name] + v.size) for v in shared]
        starts = (*sorted(self.shared.values()), self.dynamic_start)[1:]
        self.gaps = tuple(Gap(name, low, high) for (name, low), high in zip(ends, starts, strict=True))
        self._locals()
        self.parameter_offsets: list[int] = []
        self.parameter_size = 0
        for parameter in kernel.parameters:
            at = _align(self.parameter_size, parameter.align)
            self.parameter_offsets.append(at)
            self.parameter_size = at + parameter.size

    def _locals(self) -> None:
        self.local, self.frame_size = _offsets(v for v in self.function.variables.values() if v.space == "local")
        self.frame_size = _align(self.frame_size, 16)

    def of(self, function: Function) -> VariableAddresses:
        """The same of a device function that this kernel calls."""
        if function is self.function:
            return self
        addresses = VariableAddresses(self.module, self.function, self.addresses)
        addresses.function = function
        addresses._locals()
        return addresses

    def shared_size(self, dynamic: int) -> int:
        """Bytes of shared memory that a block needs, `dynamic` of them asked for at launch."""
        return _align(self.static_size, self._alignment) + dynamic if dynamic else self.static_size

    def window(self, dynamic: int) -> int:
        """Bytes of a block's window, with the gaps."""
        return self.dynamic_start + dynamic if dynamic else self.static_end

    def resolve(self, name: str) -> int:
        """The address of a name: an offset in its own space for shared, local and parameters."""
        parameters = [p.name for p in self.function.parameters] if self.function.entry else []
        if name in parameters:
            return self.parameter_offsets[parameters.index(name)]
        for table in (self.shared, self.local, self.addresses):
            if name in table:
                return table[name]
        if name in self.module.dynamic_shared:
            return self.dynamic_start
        raise Unsupported(f"the address of {name} is not known: neither a variable nor a parameter")


def _symbols(module: ParsedModule, kernel: Function) -> set[str]:
    """Names that the kernel or any device function mentions: shared variables of other kernels take no room."""
    functions = [f for f in module.functions.values() if f is kernel or not f.entry]
    return {name for f in functions for i in f.instructions for o in i.operands for name in _names(o)}


def _names(operand: object) -> Iterator[str]:
    if isinstance(operand, Symbol):
        yield operand.name
    elif isinstance(operand, Address | TensorAddress):
        yield from _names(operand.base)
    elif isinstance(operand, Vector):
        for item in operand.items:
            yield from _names(item)


def _align(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


def _offsets(variables: Iterable[Variable], gap: int = 0) -> tuple[dict[str, int], int]:
    """Where variables lie one after another, and where the last one ends."""
    offsets: dict[str, int] = {}
    end = 0
    for variable in variables:
        offsets[variable.name] = _align(end + gap if offsets else 0, variable.align)
        end = offsets[variable.name] + variable.size
    return offsets, end


def variable_segments(module: ParsedModule) -> tuple[list[Segment], dict[str, int]]:
    """Global and constant variables of a module, initialised, each a segment of its own; addresses of functions too."""
    variables = [v for v in module.variables.values() if v.space != "shared"]
    addresses = {v.name: FIRST_VARIABLE + 2 * i << SHIFT for i, v in enumerate(variables)}
    addresses |= {name: FUNCTION << SHIFT | FUNCTION_STEP * (i + 1) for i, name in enumerate(module.functions)}
    segments = []
    for i, variable in enumerate(variables):
        data = np.zeros(_align(variable.size, 16), np.uint8)
        _initialise(data, variable, addresses)
        hull = Hull(0, variable.size, f"the variable {variable.name}", f"of {variable.size} bytes")
        segments.append(Segment(FIRST_VARIABLE + 2 * i, data, [hull]))
    return segments, addresses


def _initialise(data: np.ndarray, variable: Variable, addresses: dict[str, int]) -> None:
    if not variable.initial:
        return
    dtype = dtype_of(variable.type)
    values = [_word(word, addresses).value(dtype) for word in variable.initial]
    array = np.array(values, dtype)
    data[: array.nbytes] = array.view(np.uint8)


def _word(word: str, addresses: dict[str, int]) -> Immediate:
    """A number, or the address of another variable: `name`, `generic(name)`, `name+4`."""
    name, _, offset = word.removeprefix("generic(").replace(")", "").partition("+")
    return Immediate(str(addresses[name] + int(offset or 0))) if name in addresses else Immediate(word)
