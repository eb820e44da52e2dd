"""Registers of wgmma products that are under way: read before wgmma.wait_group, or changed with no wgmma.fence after.

The emulator has the values at once, so results alone would not show it. A data-flow analysis over a function finds the
instructions that may touch such a register, and puts a check before each of them; at run time, in full mode, the check
fails if a product is really in flight. Functions without wgmma, and right ones, get no checks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from kernelmux.emulator.analysis.flow import Flow, Step, analyse, members, next_blocks, value_name
from kernelmux.emulator.ops import Action
from kernelmux.emulator.ptx.parser import Function

PRODUCT, COMMIT, WAIT, FENCE = (f"wgmma.{name}" for name in ("mma_async", "commit_group", "wait_group", "fence"))
READ = "the sums of a wgmma product are read before wgmma.wait_group"
CHANGED = "a register of wgmma was changed after the last wgmma.fence"
OPERAND_SIZES = {4}  # bytes of the registers of sums and of A; descriptors have 8, predicates 1


@dataclass(frozen=True)
class ProductsInFlight:
    """Products that a register may come from (by the id of their instruction), committed at least `age` groups ago."""

    age: int
    products: frozenset[int]

    def merged(self, other: ProductsInFlight | None) -> ProductsInFlight:
        return self if other is None else ProductsInFlight(min(self.age, other.age), self.products | other.products)


@dataclass
class WgmmaState:
    """What may hold before a step: registers in flight; registers changed since the last fence, one bit each."""

    flights: dict[int, ProductsInFlight] = field(default_factory=dict)
    changed: int = 0

    def copy(self) -> WgmmaState:
        return WgmmaState(dict(self.flights), self.changed)

    def join(self, other: WgmmaState) -> bool:
        """Adds what may hold on another way here; True if that is news."""
        before = self.copy()
        for register, flight in other.flights.items():
            self.flights[register] = flight.merged(self.flights.get(register))
        self.changed |= other.changed
        return self != before


def checked(function: Function) -> Flow:
    """The analysed function, with checks where registers in flight may be touched."""
    flow = analyse(function)
    if not any(step.instruction.opcode.startswith(PRODUCT) for step in flow.steps):
        return flow
    checks = dict(_findings(flow))
    return analyse(function, checks) if checks else flow


def _findings(flow: Flow) -> Iterator[tuple[int, Action]]:
    """By the id of the instruction, the check to run before it."""
    starts = sorted(pc for pc in flow.hard | flow.soft if pc < flow.end)
    states, work = {pc: WgmmaState() for pc in starts}, list(reversed(starts))
    while work:
        pc = work.pop()
        block, state = flow.block(pc, coarse=False), states[pc].copy()
        for step in (flow.steps[i] for i in block):
            _apply(flow, step, state)
        for target in next_blocks(flow, block):
            if target in states and states[target].join(state) and target not in work:
                work.append(target)
    for pc in starts:
        state = states[pc].copy()
        for step in (flow.steps[i] for i in flow.block(pc, coarse=False)):
            if (action := _check(flow, step, state)) is not None:
                yield id(step.instruction), action
            _apply(flow, step, state)


def _operands(flow: Flow, step: Step) -> list[int]:
    """Registers of the sums and of A that a product reads."""
    assert step.action is not None
    slots = [(value_name(operand), np.dtype(dtype).itemsize) for operand, dtype in step.action.inputs]
    return [flow.numbers[name] for name, size in slots if name and size in OPERAND_SIZES]


def _check(flow: Flow, step: Step, state: WgmmaState) -> Action | None:
    if step.instruction.opcode.startswith(PRODUCT):
        changed = any(state.changed >> register & 1 for register in _operands(flow, step))
        return Action(partial(_fail_if, None, CHANGED), guarded=True) if changed else None
    if _moved(flow, step) is not None:
        return None
    flights = [state.flights[r] for r in members(step.reads) if r in state.flights]
    if not flights:
        return None
    products = frozenset[int]().union(*(flight.products for flight in flights))
    return Action(partial(_fail_if, products, READ), guarded=True)


def _apply(flow: Flow, step: Step, state: WgmmaState) -> None:
    opcode = step.instruction.opcode
    if opcode.startswith(PRODUCT):
        flight = ProductsInFlight(0, frozenset({id(step.instruction)}))
        state.flights.update(dict.fromkeys(members(step.writes), flight))
        state.changed &= ~step.writes
    elif opcode.startswith(COMMIT):
        state.flights = {r: ProductsInFlight(f.age + 1, f.products) for r, f in state.flights.items()}
    elif opcode.startswith(WAIT):
        allowed = int(getattr(step.instruction.operands[0], "integer", 0))
        state.flights = {r: f for r, f in state.flights.items() if f.age <= allowed}
    elif opcode.startswith(FENCE):
        state.changed = 0
    elif step.writes:
        _write(flow, step, state)


def _write(flow: Flow, step: Step, state: WgmmaState) -> None:
    source = _moved(flow, step)
    for register in members(step.writes):
        flight = state.flights.pop(register, None)
        if source is not None and source in state.flights:
            flight = state.flights[source].merged(flight if step.guard else None)
        elif step.guard is None:
            flight = None
        if flight is not None:
            state.flights[register] = flight
        was_changed = source is None or (source >= 0 and state.changed >> source & 1)
        state.changed = state.changed & ~(1 << register) | (1 << register if was_changed else 0)


def _moved(flow: Flow, step: Step) -> int | None:
    """The register that a step only copies, -1 for a constant, None for every other step."""
    if step.name != "mov" or step.action is None or len(step.action.inputs) != 1:
        return None
    name = value_name(step.action.inputs[0][0])
    return -1 if name is None else flow.numbers[name]


def _fail_if(products: frozenset[int] | None, message: str, group: Any, mask: Any) -> None:
    """The check: fails if a lane of mask belongs to a warpgroup with one of these products in flight (None: always)."""
    if group.run.checks != "full" or not (mask is None or np.any(mask)):
        return
    lanes = np.broadcast_to(True if mask is None else mask, (group.n,))
    ledgers: Mapping[int, Any] = group.run.state.get("wgmma", {})
    warpgroup = group.index - group.thread % 128
    if products is None:
        group.fail("asynchronous", message, lanes)
        return
    for first in np.unique(warpgroup[lanes]):
        ledger = ledgers.get(int(first))
        waiting = [p for some in (ledger.open, *ledger.committed) for p in some] if ledger else []
        if any(id(product.ins) in products for product in waiting):
            group.fail("asynchronous", message, lanes & (warpgroup == first))
