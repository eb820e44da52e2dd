"""Turns the steps of a basic block into one Python function over numpy arrays.

A register is a Python local inside a block and an entry of the list R between blocks. Its value is an array over the
lanes of the group, or a numpy scalar when all lanes hold the same. Each register has one home type (the most used in
the function); other types of the same width are views. Source lines of the generated text map to steps, which is how
an error finds its instruction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import CodeType
from typing import Any

import numpy as np

from kernelmux.emulator.analysis.flow import JUMPS, Flow, Step
from kernelmux.emulator.analysis.registers import Registers
from kernelmux.emulator.arithmetic.floats import flush, from_bf16
from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.ops import Action
from kernelmux.emulator.ptx.dtypes import size_of
from kernelmux.emulator.ptx.operands import Address, Immediate, Operand, Register, Sink, Special, Symbol
from kernelmux.emulator.running.generated_text import converted, dtype_name, entries, local_name, locals_of, runs
from kernelmux.emulator.running.group import STOPPED
from kernelmux.emulator.running.warps import EVERY
from kernelmux.emulator.tracing import watch_hook

BlockFunction = Callable[[list[Any], Any], int]
Resolve = Callable[[str], int]

MOVE = "{0}"  # the code of an action that copies bits
FLUSHED = "flushed"  # in place of a type: float32 with zeros for subnormal numbers


def select(condition: Any, yes: Any, no: Any) -> Any:
    """`yes` where the condition holds; scalars stay scalars."""
    if condition.__class__ is np.ndarray:
        return np.where(condition, yes, no)
    return yes if condition else no


def plain(value: Any, dtype: Any) -> Any:
    """A result for all lanes as a numpy scalar of `dtype`."""
    return value[()] if value.__class__ is np.ndarray else dtype.type(value)


NAMES: dict[str, Any] = {
    "plain": plain,
    "np": np,
    "flush": flush,
    "from_bf16": from_bf16,
    "EVERY": EVERY,
    "where": np.where,
    "select": select,
    "ndarray": np.ndarray,
    "BOOL": np.dtype(bool),
}
NAMES |= {f"{kind.upper()}{size}": np.dtype(f"{kind}{size}") for kind in "ui" for size in (1, 2, 4, 8)}
NAMES |= {f"F{size}": np.dtype(f"f{size}") for size in (2, 4, 8)}


class BlockCompiler:
    """Compiles blocks of one function on demand."""

    def __init__(self, flow: Flow, resolve: Resolve, watched: bool = False) -> None:
        """resolve gives the address of a variable or parameter; a local variable is relative to the call's frame."""
        self.flow, self.resolve, self.watched = flow, resolve, watched
        self.registers = Registers(flow)
        self.used: dict[tuple[int, bool], tuple[int, ...]] = {}
        self.steps_of: dict[int, list[int]] = {}  # by the id of a code: its hash would read all of it
        self._codes: list[CodeType] = []  # which keeps the ids

    def compile(self, pc: int, coarse: bool) -> BlockFunction:
        """The function of the block at `pc`; `used[pc, coarse]` then holds the numbers of the registers it reads."""
        emitter = _Emitter(self)
        emitter.block(self.flow.block(pc, coarse), coarse)
        source = "\n".join(emitter.lines)
        kind = "coarse" if coarse else "fine"
        exec(compile(source, f"<{self.flow.function.name} block {pc} {kind}>", "exec"), emitter.names)
        function: BlockFunction = emitter.names["block"]
        self._codes.append(function.__code__)
        self.steps_of[id(function.__code__)] = emitter.steps
        self.used[pc, coarse] = tuple(sorted(emitter.loaded))
        return function


class _Emitter:
    """The text of one block."""

    def __init__(self, compiler: BlockCompiler) -> None:
        self.flow, self.registers, self.resolve = compiler.flow, compiler.registers, compiler.resolve
        self.watched = compiler.watched  # see `watch_hook`
        self.names = dict(NAMES)
        self.body: list[tuple[str, int]] = []
        self.lines: list[str] = []
        self.steps: list[int] = []  # line number - 1 -> pc
        self.views: dict[str, dict[str, str]] = {}  # register -> type name -> Python name
        self.loaded: set[int] = set()
        self.changed: set[str] = set()
        self.pc = 0

    # ---- the block

    def block(self, pcs: range, coarse: bool) -> None:
        self.wanted = self._wanted(pcs)
        for self.pc in pcs:
            step = self.flow.steps[self.pc]
            if step.name in JUMPS:
                self._jump(step)
                break
            self._step(step, coarse)
        else:
            self._leave(pcs.stop)
            self._emit(f"return {pcs.stop}")
        self._assemble()

    def _wanted(self, pcs: range) -> dict[int, int]:
        """Registers needed after each step, one bit each."""
        last = self.flow.steps[pcs[-1]]
        after = 0
        for pc in (*last.targets, pcs.stop):
            after |= self.flow.live.get(pc, 0)
        self.after = after
        wanted = {}
        for pc in reversed(pcs):
            wanted[pc] = after
            step = self.flow.steps[pc]
            if step.guard is None:
                after &= ~step.writes
            after |= step.reads
        return wanted

    def _is_wanted(self, operand: Operand) -> bool:
        """Whether the value that the current step gives to a register is used afterwards."""
        return isinstance(operand, Register) and bool(self.wanted[self.pc] >> self.registers.number[operand.name] & 1)

    def _assemble(self) -> None:
        first = self.body[0][1] if self.body else 0
        loads = [(f"{locals_of(run)} = {entries(run)}", first) for run in runs(sorted(self.loaded))]
        watch = [(f"W = G.run.watch.of({self._bind(self.flow)})", 0)] if self.watched else []
        text = [("def block(R, G):", 0), *watch, *loads, *self.body]
        self.lines = [line if i == 0 else "    " + line for i, (line, _) in enumerate(text)]
        self.steps = [pc for _, pc in text]

    def _emit(self, line: str) -> None:
        self.body.append((line, self.pc))

    def _leave(self, *targets: int) -> None:
        """Puts the registers that are needed later back into R."""
        number = self.registers.number
        for run in runs(sorted(i for i in map(number.__getitem__, self.changed) if self.after >> i & 1)):
            self._emit(f"{entries(run)} = {locals_of(run)}")

    # ---- one step

    def _step(self, step: Step, coarse: bool) -> None:
        action = step.action
        assert action is not None
        if action.code == MOVE:
            watch_hook.report(self, step)
            self._move(step)
            return
        dead = not step.writes & self.wanted[self.pc]
        if dead and not self.watched and (action.pure or action.code):
            return
        if action.bits:
            action = self._in_home_type(action)
        near, read = action.near and not self.watched, self._flushed if action.flushed else self._input
        inputs = [
            self._near(operand) if near and isinstance(operand, Address) else read(operand, dtype)
            for operand, dtype in action.inputs
        ]
        if action.scope == "barrier":
            self._emit(f"if G.barrier({self.pc}, {self._bind(action)}, {', '.join(inputs)}): return {STOPPED}")
        elif action.ready is not None:
            self._emit(f"if G.waits({self.pc}, {', '.join([self._bind(action.ready), *inputs])}): return {STOPPED}")
        elif action.scope != "thread" and not coarse:
            mask = inputs[action.members] if action.scope == "members" else "None"
            self._emit(f"if G.stops({self.pc}, {action.scope!r}, {mask}): return {STOPPED}")
        elif action.scope == "members":
            mask = inputs[action.members]
            self._emit(f"if {mask}.__class__ is ndarray or {mask} != EVERY: G.run.warps.require_membership(G, {mask})")
        watch_hook.report(self, step, inputs)
        if action.code is None and action.run is None:
            return
        if dead and (action.pure or action.code):
            return
        guard = None if step.guard is None else self._input(step.guard, bool)
        value = self._value(action, inputs, guard, dead)
        self._store(action.outputs, value, guard, dead, exact=action.exact or action.code is not None)

    def _in_home_type(self, action: Action) -> Action:
        """The same action in the signedness of its target, which saves views."""
        ((target, dtype),) = action.outputs
        home = self.registers.home[target.name] if isinstance(target, Register) else dtype
        if home.kind not in "ui" or home == dtype or home.itemsize != np.dtype(dtype).itemsize:
            return action
        return replace(action, inputs=tuple((o, home) for o, _ in action.inputs), outputs=((target, home),))

    def _move(self, step: Step) -> None:
        """A copy in the home type of the destination, whatever the type in the opcode."""
        assert step.action is not None
        ((source, dtype),), ((target, _),) = step.action.inputs, step.action.outputs
        if not isinstance(target, Register) or not self._is_wanted(target):
            return
        home = self.registers.home[target.name]
        guard = None if step.guard is None else self._input(step.guard, bool)
        if isinstance(source, Immediate):
            value = self._constant(source.value(dtype).view(home))
        elif isinstance(source, Register):
            value = self._register(source.name, home, source.negated)
        else:
            value = converted(self._input(source, dtype), np.dtype(dtype), home)
        self._define(target.name, home, value, guard)

    def _value(self, action: Any, inputs: list[str], guard: str | None, dead: bool) -> str:
        if action.code is not None:
            return str(action.code.format(*inputs))
        run = action.effect if dead and action.effect is not None else action.run
        wanted = tuple(self._is_wanted(o) for o, _ in action.outputs)
        if action.partly is not None and not all(wanted):
            run = action.partly(wanted)
        arguments = inputs if action.pure else ["G", *inputs]
        if action.guarded:
            arguments = ["G", guard or "None", *inputs]
        return f"{self._bind(run)}({', '.join(arguments)})"

    def _store(self, outputs: tuple[Any, ...], value: str, guard: str | None, dead: bool, exact: bool) -> None:
        """exact: `value` is known to be an array over the lanes or a scalar of the right type."""
        targets = [(operand, np.dtype(dtype) if dtype is not None else None) for operand, dtype in outputs]
        if dead or not targets:
            self._emit(value)
            return
        temporaries = [self._target(operand, dtype, guard) for operand, dtype in targets]
        self._emit(f"{', '.join(temporaries)} = {value}")
        for (operand, dtype), temporary in zip(targets, temporaries, strict=True):
            if not isinstance(operand, Register):
                continue
            if not exact and dtype is not None:
                as_scalar = f"{temporary} = plain({temporary}, {dtype_name(dtype)})"
                self._emit(f"if {temporary}.__class__ is not ndarray or not {temporary}.ndim: {as_scalar}")
            self._define(operand.name, dtype, temporary, guard)

    def _target(self, operand: Operand, dtype: np.dtype[Any] | None, guard: str | None) -> str:
        if isinstance(operand, Sink):
            return "_"
        assert isinstance(operand, Register)
        number = self.registers.number[operand.name]
        home = self.registers.home[operand.name]
        if guard is None and (dtype is None or dtype == home):
            return local_name(number)
        return f"t{number}"

    def _define(self, name: str, dtype: np.dtype[Any] | None, temporary: str, guard: str | None) -> None:
        """Makes `temporary` the value of a register, kept for the lanes whose guard is off."""
        home, local = self.registers.home[name], local_name(self.registers.number[name])
        value = temporary
        if dtype is not None and dtype != home:
            value = converted(value, dtype, home)
        if guard is not None:
            value = f"select({guard}, {value}, {self._register(name, home)})"
        if value != local:
            self._emit(f"{local} = {value}")
        self.changed.add(name)
        self.views[name] = {dtype_name(home) if not home.shape else "bytes": local}
        if guard is None and dtype is not None and dtype != home and dtype.itemsize == home.itemsize:
            self.views[name][dtype_name(dtype)] = temporary

    # ---- reading operands

    def _input(self, operand: Operand, dtype: Any) -> str:
        """A Python expression for an operand as `dtype`."""
        if isinstance(operand, Register):
            return self._register(operand.name, dtype, operand.negated)
        if isinstance(operand, Immediate):
            return self._constant(operand.value(dtype))
        if isinstance(operand, Special):
            value = f"G.special({operand.name!r})"
            return value if np.dtype(dtype) == np.uint32 else f"{value}.astype({dtype_name(dtype)})"
        if isinstance(operand, Symbol):
            return self._symbol(operand.name, 0, dtype)
        if isinstance(operand, Address):
            return self._address(operand)
        raise Unsupported(f"cannot read the operand {operand}")

    def _flushed(self, operand: Operand, dtype: Any) -> str:
        """A float32 operand with zeros for subnormal numbers, which are looked for once in each block."""
        if isinstance(operand, Immediate):
            return self._constant(flush(operand.value(dtype)))
        value = self._input(operand, dtype)
        if not isinstance(operand, Register) or operand.name in self.registers.normal:
            return value
        views = self.views[operand.name]
        if FLUSHED not in views:
            views[FLUSHED] = f"{local_name(self.registers.number[operand.name])}_{FLUSHED}"
            self._emit(f"{views[FLUSHED]} = flush({value})")
        return views[FLUSHED]

    def _register(self, name: str, dtype: Any, negated: bool = False) -> str:
        number, home = self.registers.number[name], self.registers.home[name]
        if name not in self.views:
            self.loaded.add(number)
            self.views[name] = {dtype_name(home) if not home.shape else "bytes": local_name(number)}
        views = self.views[name]
        if dtype is None or home.shape:
            return next(iter(views.values()))
        wanted = dtype_name(dtype)
        if wanted not in views:
            views[wanted] = f"{local_name(number)}_{wanted}"
            self._emit(f"{views[wanted]} = {converted(local_name(number), home, np.dtype(dtype))}")
        return f"(~{views[wanted]})" if negated else views[wanted]

    def _address(self, operand: Address) -> str:
        base = operand.base
        if isinstance(base, Symbol):
            return self._symbol(base.name, operand.offset, np.int64)
        if isinstance(base, Immediate):
            return self._constant(np.int64(base.integer + operand.offset))
        assert isinstance(base, Register)
        if size_of(base.type) == 8:
            value = self._register(base.name, np.int64)
            return f"({value} + {self._constant(np.int64(operand.offset))})" if operand.offset else value
        value = self._register(base.name, np.uint32)  # shared addresses wrap at 32 bits
        value = f"({value} + {self._constant(np.uint32(operand.offset & 0xFFFFFFFF))})" if operand.offset else value
        return f"{value}.astype(I8)"

    def _near(self, operand: Address) -> str:
        """A 32-bit register and a constant, which the access itself adds."""
        base = operand.base
        if not isinstance(base, Register) or size_of(base.type) != 4 or self.registers.near[base.name] < 2:
            return self._address(operand)
        home = self.registers.home[base.name]
        return f"({self._register(base.name, home if home.kind in 'iu' else np.uint32)}, {operand.offset})"

    def _symbol(self, name: str, offset: int, dtype: Any) -> str:
        value = self._constant(np.int64(self.resolve(name) + offset).astype(dtype))
        if name in self.flow.function.variables and self.flow.function.variables[name].space == "local":
            return f"G.local_address({value})"
        return value

    def _constant(self, value: Any) -> str:
        name = f"k_{dtype_name(value.dtype)}_{value.tobytes().hex()}"
        self.names[name] = value
        return name

    def _bind(self, thing: Any) -> str:
        name = f"f_{id(thing):x}"
        self.names[name] = thing
        return name

    # ---- jumps

    def _jump(self, step: Step) -> None:
        watch_hook.report(self, step)
        if step.name == "brx":
            index = self._input(step.instruction.operands[0], np.uint32)
            self._leave()
            self._emit(f"return G.branch_indexed({index}, {step.targets})")
            return
        (target,) = step.targets
        if step.guard is None:
            self._leave()
            self._emit(f"return {target}")
            return
        condition = self._input(step.guard, bool)
        self._leave()
        self._emit(f"if {condition}.__class__ is not ndarray: return {target} if {condition} else {self.pc + 1}")
        self._emit(f"return G.branch({condition}, {target}, {self.pc + 1})")
