"""Random programs with branches, loops and early ends: every thread ends with what it would compute alone."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelmux.emulator.running.launch import load
from kernelmux.emulator.settings import checks

REGISTERS, THREADS, BLOCKS = 5, 80, 2
MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class Set:
    """%r[target] = %r[a] op %r[b] or a number; only where bit `guard` of %r[a] is set, unless None."""

    op: str
    target: int
    a: int
    b: int
    guard: int | None


@dataclass(frozen=True)
class If:
    """Tests bit `bit` of a register."""

    register: int
    bit: int
    then: tuple[Any, ...]
    otherwise: tuple[Any, ...]


@dataclass(frozen=True)
class Loop:
    """Runs its body (%r[register] & 3) times; a body may leave early where bit `leave` of that register is set."""

    register: int
    body: tuple[Any, ...]
    leave: int | None


@dataclass(frozen=True)
class End:
    """Threads where bit `bit` of a register is set return without a result."""

    register: int
    bit: int


OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "add.u32": lambda a, b: a + b,
    "mul.lo.u32": lambda a, b: a * b,
    "xor.b32": lambda a, b: a ^ b,
    "sub.u32": lambda a, b: a - b,
    "min.u32": min,
}

index = st.integers(0, REGISTERS - 1)
bits = st.integers(0, 7)
assignment = st.builds(
    Set, st.sampled_from(sorted(OPERATIONS)), index, index, st.one_of(index, st.integers(10, 99)), st.none() | bits
)


def blocks(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    body = st.lists(inner, max_size=4).map(tuple)
    return st.one_of(inner, st.builds(If, index, bits, body, body), st.builds(Loop, index, body, st.none() | bits))


statement = st.recursive(
    st.one_of(assignment, assignment, st.builds(End, index, st.integers(5, 9))), blocks, max_leaves=14
)
programs = st.lists(statement, min_size=1, max_size=8).map(tuple)


class Ended(Exception):
    pass


def interpret(program: tuple[Any, ...], values: list[int]) -> None:
    """One thread, the plain way."""
    for step in program:
        if isinstance(step, Set):
            right = values[step.b] if step.b < 10 else step.b
            if step.guard is None or values[step.a] >> step.guard & 1:
                values[step.target] = OPERATIONS[step.op](values[step.a], right) & MASK
        elif isinstance(step, If):
            interpret(step.then if values[step.register] >> step.bit & 1 else step.otherwise, values)
        elif isinstance(step, Loop):
            for _ in range(values[step.register] & 3):
                interpret(step.body, values)
                if step.leave is not None and values[step.register] >> step.leave & 1:
                    break
        elif values[step.register] >> step.bit & 1:
            raise Ended


class Writer:
    """The same program as PTX."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.labels = count()
        self.loops = count()

    def bit(self, register: int, bit: int) -> None:
        self.lines.append(f"and.b32 %t, %r{register}, {1 << bit}; setp.ne.u32 %p, %t, 0;")

    def write(self, program: tuple[Any, ...]) -> None:
        for step in program:
            getattr(self, type(step).__name__.lower())(step)

    def set(self, step: Set) -> None:
        right = f"%r{step.b}" if step.b < 10 else step.b
        guard = ""
        if step.guard is not None:
            self.bit(step.a, step.guard)
            guard = "@%p "
        self.lines.append(f"{guard}{step.op} %r{step.target}, %r{step.a}, {right};")

    def _if(self, step: If) -> None:
        other, end = f"L{next(self.labels)}", f"L{next(self.labels)}"
        self.bit(step.register, step.bit)
        self.lines.append(f"@!%p bra {other};")
        self.write(step.then)
        self.lines.append(f"bra.uni {end}; {other}:")
        self.write(step.otherwise)
        self.lines.append(f"{end}:")

    def loop(self, step: Loop) -> None:
        begin, end, number = f"L{next(self.labels)}", f"L{next(self.labels)}", next(self.loops)
        self.lines.append(f"and.b32 %c{number}, %r{step.register}, 3;")
        self.lines.append(f"{begin}: setp.eq.u32 %p, %c{number}, 0; @%p bra {end};")
        self.write(step.body)
        if step.leave is not None:
            self.bit(step.register, step.leave)
            self.lines.append(f"@%p bra {end};")
        self.lines.append(f"sub.u32 %c{number}, %c{number}, 1; bra {begin}; {end}:")

    def end(self, step: End) -> None:
        self.bit(step.register, step.bit)
        self.lines.append("@%p ret;")

    def __getattr__(self, name: str) -> Any:
        return {"if": self._if}[name]

    def module(self, program: tuple[Any, ...]) -> str:
        self.write(program)
        store = "".join(f"st.global.u32 [%a+{4 * i}], %r{i};" for i in range(REGISTERS))
        start = "".join(f"mad.lo.u32 %r{i}, %i, {7919 * (i + 1)}, {i * 5};" for i in range(REGISTERS))
        counters = "".join(f".reg .b32 %c{i};" for i in range(next(self.loops)))
        return f"""
.version 9.0
.target sm_90a
.address_size 64
.visible .entry program(.param .u64 out)
{{
.reg .b32 %r<{REGISTERS}>; .reg .b32 %t; .reg .b32 %i; .reg .b32 %n; .reg .b64 %a; .reg .b64 %o; .reg .pred %p;
{counters}
mov.u32 %i, %ctaid.x; mov.u32 %n, %ntid.x; mov.u32 %t, %tid.x; mad.lo.u32 %i, %i, %n, %t;
{start}
{chr(10).join(self.lines)}
ld.param.u64 %a, [out]; mul.wide.u32 %o, %i, {4 * REGISTERS}; add.s64 %a, %a, %o;
{store}
ret;
}}
"""


def expected(program: tuple[Any, ...]) -> np.ndarray:
    result = np.zeros((BLOCKS * THREADS, REGISTERS), np.uint32)
    for thread in range(len(result)):
        values = [(thread * 7919 * (i + 1) + i * 5) & MASK for i in range(REGISTERS)]
        try:
            interpret(program, values)
        except Ended:
            continue
        result[thread] = values
    return result


@pytest.mark.parametrize("mode", ["fast", "full"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program=programs)
def test_random_programs(mode: str, program: tuple[Any, ...]) -> None:
    out = np.zeros((BLOCKS * THREADS, REGISTERS), np.uint32)
    with checks(mode):
        load(Writer().module(program)).kernel("program").launch(BLOCKS, THREADS, [out])
    np.testing.assert_array_equal(out, expected(program))
