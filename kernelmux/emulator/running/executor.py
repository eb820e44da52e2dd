"""Runs a kernel: chunks of blocks, groups of lanes, the lowest program counter first.

Lanes that took the same way run as one group. A branch splits a group; groups that meet at one place are joined.
Running the lowest program counter first makes them meet where structured code comes together again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from kernelmux.emulator.analysis.flow import Flow, Step, members
from kernelmux.emulator.errors import EmulatorError, Fault
from kernelmux.emulator.running import error_values
from kernelmux.emulator.running.barriers import Barriers
from kernelmux.emulator.running.codegen import BlockCompiler, BlockFunction, Resolve
from kernelmux.emulator.running.group import STOPPED, Group, join
from kernelmux.emulator.running.lanes import Geometry
from kernelmux.emulator.running.warps import Warps
from kernelmux.emulator.settings import Deadline

BUDGET = 256  # blocks that a group may run while others wait: a spinning lane must not starve the one it waits for
PATIENCE = 2  # rounds in which no waiting group could go on, before it is called a deadlock
DEEPEST_CALL = 60
CLOCK_EVERY = 16  # blocks between two looks at the clock


class Program:
    """One function, compiled block by block as it is reached."""

    def __init__(self, flow: Flow, resolve: Resolve, frame_size: int, watched: bool = False) -> None:
        self.flow, self.frame_size, self.name = flow, frame_size, flow.function.name
        self.compiler = BlockCompiler(flow, resolve, watched)
        self.end = flow.end
        self._live: dict[int, tuple[int, ...]] = {}
        self._blocks: dict[bool, list[BlockFunction | None]] = {c: [None] * (self.end + 1) for c in (False, True)}

    @property
    def initial(self) -> list[Any]:
        return self.compiler.registers.initial

    def live(self, pc: int) -> tuple[int, ...]:
        """Numbers of the registers that are needed from `pc` on."""
        if pc not in self._live:
            self._live[pc] = tuple(members(self.flow.live.get(pc, 0)))
        return self._live[pc]

    def block(self, pc: int, coarse: bool) -> BlockFunction:
        """The compiled block that starts at `pc`."""
        block = self._blocks[coarse][pc]
        if block is None:
            block = self._blocks[coarse][pc] = self.compiler.compile(pc, coarse)
        return block

    def running(self, error: BaseException) -> tuple[Step | None, error_values.Frame]:
        """The step that was running when `error` was raised in one of our blocks, and the block's variables."""
        found, frame, trace = None, {}, error.__traceback__
        while trace is not None:
            lines = self.compiler.steps_of.get(id(trace.tb_frame.f_code))
            if lines is not None:
                found, frame = self.flow.steps[lines[trace.tb_lineno - 1]], trace.tb_frame.f_locals
            trace = trace.tb_next
        return found, frame


class Run:
    """A chunk of blocks while it runs. Operations keep their own state per chunk in `state`."""

    def __init__(
        self,
        geometry: Geometry,
        access: Any,
        checks: str,
        deadline: Deadline,
        library: Any,
        watch: Any = None,
        covered: Callable[[Flow], set[int]] | None = None,
    ) -> None:
        self.geometry, self.access, self.checks, self.deadline = geometry, access, checks, deadline
        self.library = library  # library.program(name, watched): a device function, None if unknown
        self.watch = watch  # see `watch_hook`; None: not watched
        self.covered = covered  # where blocks of a function that run are noted: see `basic_blocks`
        self.memory, self.shared = access.memory, access.shared
        self.everyone = geometry.everyone
        self.alive = np.ones(geometry.lanes, bool)
        self.alive_count = geometry.lanes
        self.barriers, self.warps = Barriers(self), Warps(self)
        self.state: dict[str, Any] = {}
        self.on_finish: list[Callable[[], None]] = []
        self.on_exit: list[Callable[[Group], None]] = []  # called with lanes that have just ended
        self.frame = 0  # where the local variables of the current call begin
        self.depth = 0
        self.activation: Activation
        self.ticks = 0

    def kept(self, name: str, make: Callable[[], Any], at_end: Callable[[Any], None] | None = None) -> Any:
        """What operations keep for this chunk under a name; made when it is asked for first.

        at_end: called with it when the chunk has finished.
        """
        if name not in self.state:
            made = self.state[name] = make()
            if at_end is not None:
                self.on_finish.append(partial(at_end, made))
        return self.state[name]

    @property
    def initial(self) -> list[Any]:
        return self.activation.program.initial

    def start(self, program: Program) -> None:
        """Runs all lanes of the chunk to their end."""
        self.access.local.reserve(program.frame_size)
        Activation(self, program).execute(Group(self, self.everyone, list(program.initial), 0))
        for callback in self.on_finish:
            callback()

    def call(self, group: Group, name: str, arguments: tuple[Any, ...]) -> Any:
        """Runs a device function for the lanes of a group; returns its results' bytes."""
        program = self.library.program(name, self.watch is not None)
        if program is None:
            group.fail("unsupported", f"call of {name}, which the module does not define")
        outer, self.depth = self.activation, self.depth + 1
        if self.depth > DEEPEST_CALL:
            group.fail("call stack", f"more than {DEEPEST_CALL} nested calls", [0])
        frame, self.frame = self.frame, max(self.frame + outer.program.frame_size, -(-outer.stack_end // 16) * 16)
        self.access.local.reserve(self.frame + program.frame_size)
        try:
            return Activation(self, program).call(group, arguments)
        finally:
            self.activation, self.frame, self.depth = outer, frame, self.depth - 1

    def exit(self, group: Group) -> None:
        """These lanes are done for good."""
        self.alive[group.index] = False
        self.alive_count -= group.n
        for callback in self.on_exit:
            callback(group)
        self.warps.forget()
        self.barriers.lanes_left(group)

    def counter(self, name: str) -> Any:
        """Clocks and sizes: special registers that do not follow from the lane numbers."""
        if name in ("%clock64", "%globaltimer"):
            return np.uint64(self.ticks)
        if name in ("%clock", "%clock_hi", "%globaltimer_lo", "%globaltimer_hi"):
            return np.uint32(0 if name.endswith("_hi") else self.ticks & 0xFFFFFFFF)
        if name == "%dynamic_smem_size":
            return np.uint32(self.shared.dynamic)
        raise Fault("unsupported", f"the special register {name} is not emulated")


class Activation:
    """One call of a function by some lanes: the groups that can run and those that wait."""

    def __init__(self, run: Run, program: Program) -> None:
        self.run, self.program = run, program
        self.groups: list[Group] = []
        self.parked: list[Group] = []
        self.returned: list[Group] = []
        self.idle_rounds = 0
        self.stack: np.ndarray | None = None  # see ops/stack.py
        self.stack_end = 0

    def execute(self, group: Group) -> list[Group]:
        """Runs until no lane is left; returns the groups that returned from the function."""
        outer = getattr(self.run, "activation", None)
        self.run.activation = self
        self.groups.append(group)
        while (chosen := self._next()) is not None:
            self._run(chosen)
        if outer is not None:
            self.run.activation = outer
        return self.returned

    def call(self, group: Group, arguments: tuple[Any, ...]) -> Any:
        """Runs the function for the lanes of a caller's group."""
        registers, function = list(self.program.initial), self.program.flow.function
        number = self.program.compiler.registers.number
        for parameter, value in zip(function.parameters, arguments, strict=True):
            if parameter.name in number:
                registers[number[parameter.name]] = value
        returned = self.execute(Group(self.run, group.lanes, registers, 0))
        results = tuple(number[r.name] for r in function.results if r.name in number)
        if not returned:
            group.fail("unsupported", "every thread exits inside a device function")
        ended = join(returned, results)
        ended.require(results)
        if ended.n != group.n:
            group.fail("unsupported", "some threads exit inside a device function")
        values = tuple(ended.R[i] for i in results)
        return values[0] if len(values) == 1 else values

    # ---- scheduling

    def runnable(self, *groups: Group) -> None:
        """These groups can run."""
        self.groups += groups
        self.idle_rounds = 0

    def park(self, group: Group, pc: int, waiting: Any) -> None:
        """The lanes where `waiting` holds wait at `pc`; the others of the group go on there."""
        if np.all(waiting):
            group.pc, group.turn = pc, self.run.ticks
            self.parked.append(group)
            return
        self.parked.append(group.part(np.flatnonzero(waiting), pc))
        self.parked[-1].turn = self.run.ticks
        self.runnable(group.part(np.flatnonzero(~waiting), pc))

    def wake(self) -> None:
        """Something happened that waiting lanes may have waited for."""
        self.runnable(*self.parked)
        self.parked = []

    def _next(self) -> Group | None:
        if not self.groups and self.parked:
            self._retry()
        if not self.groups:
            return None
        first = min(self.groups, key=lambda g: g.pc)
        if len(self.groups) > 1:
            # The limit counts since a group last ran: one that spins and passes barriers is a new group after each.
            oldest = min(self.groups, key=lambda g: g.turn)
            if self.run.ticks - oldest.turn > BUDGET:
                first = oldest
        meeting = [g for g in self.groups if g.pc == first.pc]
        self.groups = [g for g in self.groups if g.pc != first.pc]
        return first if len(meeting) == 1 else join(meeting, self.program.live(first.pc))

    def _retry(self) -> None:
        self.idle_rounds += 1
        if self.idle_rounds > PATIENCE:
            raise self._deadlock()
        self.groups, self.parked = self.parked, []

    def _run(self, group: Group) -> None:
        try:
            self._advance(group)
        except Fault as fault:
            step, frame = self.program.running(fault)
            values = self._values(frame, step, fault.lane) if fault.instruction is None else {}
            at = fault.instruction or step
            raise self._located(fault.kind, fault.message, fault.lane, at, values, fault.earlier) from fault
        except EmulatorError:
            raise
        except Exception as error:
            if (step := self.program.running(error)[0]) is not None:
                error.add_note(f"while emulating {self.program.name}: {step.instruction.text}")
            raise

    def _advance(self, group: Group) -> None:
        """Runs a group until it stops, ends, or reaches the place of another."""
        run, program = self.run, self.program
        coarse = group.lanes.whole_warps
        blocks, used = program._blocks[coarse], program.compiler.used
        limit = min((g.pc for g in self.groups), default=program.end)
        left = BUDGET + 1 if self.groups or self.parked else 1 << 60
        ran = run.covered(program.flow) if run.covered else None
        pc = group.pc
        while pc < program.end:
            block = blocks[pc] or program.block(pc, coarse)
            if ran is not None:
                ran.add(pc)
            if group.origin is not None:
                group.require(used[pc, coarse])
            pc = block(group.R, group)
            run.ticks += 1
            left -= 1
            if run.ticks % CLOCK_EVERY == 0 and run.deadline.passed:
                raise self._late(group, pc)
            if pc == STOPPED:
                return
            if pc >= limit or left <= 0:
                break
        self._pause(group, pc, starving=left <= 0)

    def _pause(self, group: Group, pc: int, starving: bool) -> None:
        self.idle_rounds = 0
        group.pc, group.turn = pc, self.run.ticks
        if pc >= self.program.end:
            self._finish(group)
            return
        self.groups.append(group)
        if starving:
            self.wake()

    def _finish(self, group: Group) -> None:
        if group.pc == self.program.end and self.run.depth:
            self.returned.append(group)
        else:
            self.run.exit(group)

    # ---- errors

    def _located(
        self,
        kind: str,
        message: str,
        lane: int | None,
        step: Step | None,
        values: dict[str, str] | None = None,
        earlier: Step | None = None,
    ) -> EmulatorError:
        geometry = self.run.geometry
        block, thread = geometry.coordinates(lane) if lane is not None else (None, None)
        name, access = self.program.name, self.run.access
        return access.error(kind, message, name, step, block, thread, values, earlier)  # type: ignore[no-any-return]

    def _values(self, frame: error_values.Frame, step: Step | None, lane: int | None) -> dict[str, str]:
        if step is None or lane is None:
            return {}
        return error_values.values(frame, self.program.flow.numbers, self.run.memory.segments, step, lane)

    def _late(self, group: Group, pc: int) -> EmulatorError:
        """The error names lanes that run, not lanes that have just come to wait for them."""
        if pc == STOPPED and self.groups:
            group = max(self.groups, key=lambda g: g.turn)
            pc = group.pc
        step = self.program.flow.steps[min(max(pc, group.pc, 0), self.program.end - 1)]
        return self._located("time limit", str(self.run.deadline), int(group.index[0]), step)

    def _deadlock(self) -> EmulatorError:
        steps = self.program.flow.steps
        places = []
        for group in self.parked[:6]:
            location = steps[group.pc].instruction.location
            at = f" at line {location.line}" if location else ""
            places.append(f"{group.n} thread{'s' if group.n != 1 else ''}{at} in `{steps[group.pc].instruction.text}`")
        text = "no thread can go on: " + "; ".join(places)
        first = self.parked[0]
        return self._located("deadlock", text, int(first.index[0]), steps[first.pc])
