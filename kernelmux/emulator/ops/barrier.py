"""bar and barrier: the threads of a block, or of a warp, wait for one another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelmux.emulator.ops import Action, not_emulated, operation
from kernelmux.emulator.ptx.operands import Immediate, Operand
from kernelmux.emulator.ptx.parser import Instruction
from kernelmux.emulator.running.group import Group


@dataclass(frozen=True)
class BarrierAction(Action):
    """Inputs: number, count (0: all threads), and the predicate of a reduction."""

    arrive_only: bool = False
    reduction: str | None = None


@operation("bar.sync", "barrier.sync", "barrier.cta.sync", "bar.cta.sync")
def sync(ins: Instruction) -> Action:
    return BarrierAction(inputs=_number_and_count(ins.operands), scope="barrier")


@operation("bar.arrive", "barrier.arrive", "barrier.cta.arrive", "bar.cta.arrive")
def arrive(ins: Instruction) -> Action:
    return BarrierAction(inputs=_number_and_count(ins.operands), scope="barrier", arrive_only=True)


@operation("bar.red", "barrier.red", "barrier.cta.red", "bar.cta.red")
def reduce(ins: Instruction) -> Action:
    kind = next((m for m in ins.modifiers if m in ("popc", "and", "or")), None)
    if kind is None:
        raise not_emulated(ins)
    result, *barrier, predicate = ins.operands
    dtype = np.uint32 if kind == "popc" else bool
    return BarrierAction(
        run=_counted if kind == "popc" else _decided,
        inputs=(*_number_and_count(tuple(barrier)), (predicate, bool)),
        outputs=((result, dtype),),
        scope="barrier",
        reduction=kind,
    )


def _number_and_count(operands: tuple[Operand, ...]) -> tuple[tuple[Operand, Any], ...]:
    number, count = operands if len(operands) > 1 else (operands[0], Immediate("0"))
    return ((number, np.uint32), (count, np.uint32))


def _counted(group: Group, *inputs: Any) -> Any:
    return group.run.barriers.reduced(group)


def _decided(group: Group, *inputs: Any) -> Any:
    return group.run.barriers.reduced(group) != 0


@operation("bar.warp.sync")
def warp_sync(ins: Instruction) -> Action:
    return Action(_order_warps, inputs=((ins.operands[0], np.uint32),), scope="members")


def _order_warps(group: Group, mask: Any) -> None:
    group.run.shared.synchronise_warps(group)
