"""From a parsed function to steps in basic blocks: guards lowered to branches, control flow, live registers.

A program counter is the number of a step. Two kinds of block starts: hard ones (branch targets, barriers, waits), and
soft ones (warp operations), where lanes stop only if other lanes of their warp are elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.ops import Action
from kernelmux.emulator.ops.catalogue import build
from kernelmux.emulator.ptx.operands import Immediate, Register, Symbol
from kernelmux.emulator.ptx.parser import Function, Instruction

JUMPS = ("bra", "ret", "exit", "brx")


@dataclass(slots=True)
class Step:
    """One instruction in its place; jumps have no action but targets (program counters).

    reads and writes have one bit per register (`Flow.numbers`); a guarded step reads what it writes.
    """

    instruction: Instruction
    action: Action | None
    guard: Register | None = None
    targets: tuple[int, ...] = ()
    reads: int = 0
    writes: int = 0

    @property
    def name(self) -> str:
        return self.instruction.name

    @property
    def is_barrier(self) -> bool:
        return self.action is not None and self.action.scope == "barrier"


@dataclass
class Flow:
    """The steps of a function; `hard` and `soft` block starts.

    live[pc] has one bit per register that is needed from the block start `pc` on; numbers gives the register's bit.
    """

    function: Function
    steps: list[Step]
    hard: set[int] = field(default_factory=set)
    soft: set[int] = field(default_factory=set)
    numbers: dict[str, int] = field(default_factory=dict)
    live: dict[int, int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """The program counter of lanes that have returned; `end + 1` of lanes that have exited."""
        return len(self.steps)

    def block(self, pc: int, coarse: bool) -> range:
        """The steps of the block that starts at `pc`; a coarse block runs through soft starts."""
        stop = pc + 1
        while stop < self.end and stop not in self.hard and (coarse or stop not in self.soft):
            stop += 1
        return range(pc, stop)


def analyse(function: Function, checks: Mapping[int, Action] | None = None) -> Flow:
    """Builds all actions; raises `Unsupported` (with its instruction as `.step`) for what is not emulated.

    checks: actions to run before instructions, which are named by their id.
    """
    steps, labels = _lower(function, checks or {})
    flow = Flow(function, steps)
    for step in steps:
        if step.name in JUMPS:
            step.targets = _targets(step.instruction, function, labels, flow.end)
    _starts(flow)
    _number(flow)
    _liveness(flow)
    return flow


def _lower(function: Function, checks: Mapping[int, Action]) -> tuple[list[Step], dict[str, int]]:
    """Steps, and labels as program counters; a guarded instruction with side effects gets a branch around it."""
    steps: list[Step] = []
    positions = []
    for instruction in function.instructions:
        positions.append(len(steps))
        if id(instruction) in checks:
            steps.append(Step(instruction, checks[id(instruction)], instruction.guard))
        steps += _steps(instruction, len(steps))
    positions.append(len(steps))
    return steps, {label: positions[at] for label, at in function.labels.items()}


def _steps(instruction: Instruction, pc: int) -> Iterator[Step]:
    guard = instruction.guard
    if instruction.name in JUMPS:
        yield Step(instruction, None, guard)
        return
    action = _build(instruction)
    if guard is not None and not (action.pure or action.guarded or action.code):
        around = Instruction(
            "bra",
            (Immediate(str(pc + 2)),),
            Register(guard.name, guard.type, not guard.negated),
            instruction.text,
            instruction.location,
        )
        yield Step(around, None, around.guard)
        guard = None
    yield Step(instruction, action, guard)


def _build(instruction: Instruction) -> Action:
    try:
        return build(instruction)
    except Unsupported as error:
        error.instruction_at = instruction  # type: ignore[attr-defined]
        raise
    except (LookupError, StopIteration, TypeError, ValueError, AttributeError) as error:
        unknown = Unsupported(
            f"the PTX instruction {instruction.opcode} has operands or modifiers that are not emulated"
        )
        unknown.instruction_at = instruction  # type: ignore[attr-defined]
        raise unknown from error


def _targets(instruction: Instruction, function: Function, labels: dict[str, int], end: int) -> tuple[int, ...]:
    if instruction.name == "ret":
        return (end,)
    if instruction.name == "exit":
        return (end + 1,)
    target = instruction.operands[-1]
    if isinstance(target, Immediate):
        return (target.integer,)
    assert isinstance(target, Symbol)
    if instruction.name == "brx":
        return tuple(labels[name] for name in function.tables[target.name])
    return (labels[target.name],)


def _starts(flow: Flow) -> None:
    flow.hard.add(0)
    for pc, step in enumerate(flow.steps):
        if step.name in JUMPS:
            flow.hard.update(step.targets, (pc + 1,))
        elif step.action is not None and (step.action.ready is not None or step.is_barrier):
            flow.hard.add(pc)
        elif step.action is not None and step.action.scope != "thread":
            flow.soft.add(pc)


def uses(step: Step) -> Iterator[str]:
    """Names of the registers that a step reads."""
    if step.guard is not None:
        yield step.guard.name
    if step.action is None:
        if step.name == "brx" and isinstance(step.instruction.operands[0], Register):
            yield step.instruction.operands[0].name
        return
    for operand, _ in step.action.inputs:
        base = getattr(operand, "base", operand)
        if name := value_name(base):
            yield name
    if step.guard is not None:
        yield from definitions(step)


def definitions(step: Step) -> Iterator[str]:
    """Names of the registers that a step writes."""
    for operand, _ in step.action.outputs if step.action is not None else ():
        if name := value_name(operand):
            yield name


def value_name(operand: object) -> str | None:
    """The name under which the value of an operand is kept: registers, and parameters of calls."""
    if isinstance(operand, Register):
        return operand.name
    return None


def _number(flow: Flow) -> None:
    """Numbers the registers, and notes which ones every step reads and writes."""
    numbers = flow.numbers
    for step in flow.steps:
        for name in uses(step):
            step.reads |= 1 << numbers.setdefault(name, len(numbers))
        for name in definitions(step):
            step.writes |= 1 << numbers.setdefault(name, len(numbers))


def _liveness(flow: Flow) -> None:
    """Backward data flow over the fine blocks."""
    blocks = {}
    for pc in sorted(s for s in flow.hard | flow.soft if s < flow.end):
        steps = flow.block(pc, coarse=False)
        blocks[pc] = (*_gen_kill(flow, steps), next_blocks(flow, steps))
    results = sum(1 << flow.numbers.setdefault(r.name, len(flow.numbers)) for r in flow.function.results)
    live = {pc: 0 for pc in blocks} | {flow.end: results, flow.end + 1: 0}
    order, changed = sorted(blocks, reverse=True), True
    while changed:
        changed = False
        for pc in order:
            gen, kill, successors = blocks[pc]
            out = 0
            for successor in successors:
                out |= live[successor]
            new = gen | (out & ~kill)
            changed |= new != live[pc]
            live[pc] = new
    flow.live = live


def members(bits: int) -> Iterator[int]:
    """The numbers of the bits that are set, ascending."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _gen_kill(flow: Flow, steps: range) -> tuple[int, int]:
    gen = kill = 0
    for pc in steps:
        step = flow.steps[pc]
        gen |= step.reads & ~kill
        if step.guard is None:
            kill |= step.writes
    return gen, kill


def next_blocks(flow: Flow, steps: range) -> tuple[int, ...]:
    """Where lanes may go from the end of a block."""
    last = flow.steps[steps[-1]]
    if last.name in JUMPS:
        falls = (steps[-1] + 1,) if last.guard is not None else ()
        return (*last.targets, *falls)
    return (steps[-1] + 1,)
