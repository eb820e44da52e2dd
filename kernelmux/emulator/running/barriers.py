"""Barriers of a block: sixteen of them, with or without a count, arriving, waiting and reducing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kernelmux.emulator.errors import Fault

if TYPE_CHECKING:
    from kernelmux.emulator.ops.barrier import BarrierAction
    from kernelmux.emulator.ptx.parser import Instruction
    from kernelmux.emulator.running.chunk_protocol import Chunk
    from kernelmux.emulator.running.group import Group

NUMBER = 16  # barriers per block


class Barriers:
    """Which lanes wait at which barrier. A lane that may go on arrives once more and finds `passed` set."""

    def __init__(self, run: Chunk) -> None:
        self.run = run
        self.reduction: str | None = None  # of the barrier that lanes wait at now
        self._reduced: Any = None
        self._ready = False

    def _prepare(self) -> None:
        """Allocates the general case; most kernels only ever need the fast path."""
        lanes, blocks = self.run.geometry.lanes, self.run.geometry.blocks
        self.key = np.full(lanes, -1, np.int64)  # block * NUMBER + barrier that a lane waits at
        self.pc = np.zeros(lanes, np.int64)
        self.passed = np.zeros(lanes, bool)
        self.predicate = np.zeros(lanes, bool)
        self.arrived = np.zeros(blocks * NUMBER, np.int64)
        self.expected = np.zeros(blocks * NUMBER, np.int64)  # 0: all threads that are alive
        self.result_lanes = np.zeros(lanes, np.uint32)
        self._ready = True

    def arrive(
        self, group: Group, pc: int, action: BarrierAction, number: Any, count: Any, predicate: Any = None
    ) -> bool:
        """True if some lanes of the group have to wait."""
        beyond = np.asarray(number) >= NUMBER
        if beyond.any():
            group.fail("divergence", f"barrier {np.max(number)} does not exist, a block has {NUMBER}", beyond)
        if np.ndim(count) == 0 and count == self.run.geometry.threads:
            count = np.uint32(0)
        everyone = group.n == self.run.alive_count and not np.any(count) and not np.ndim(number)
        if everyone and not action.arrive_only and not (self._ready and self.arrived.any()):
            self._pass_everyone(group, action, predicate)
            return False
        if not self._ready:
            self._prepare()
        return self._arrive(group, pc, action, number, count, predicate)

    def _pass_everyone(self, group: Group, action: BarrierAction, predicate: Any) -> None:
        if self._ready:
            self.passed[group.index] = False
        if action.reduction:
            self._reduced = _reduce(action.reduction, group.full(predicate), group.block, self.run.geometry.blocks)
        self.run.shared.synchronise(None)

    def _arrive(self, group: Group, pc: int, action: BarrierAction, number: Any, count: Any, predicate: Any) -> bool:
        index = group.index
        if not action.arrive_only and self.passed[index].all():
            self.passed[index] = False
            if action.reduction:
                self._reduced = self.result_lanes[index]
            return False
        self._enter(group, pc, action, number, count, predicate)
        self._complete()
        if action.arrive_only:
            return False
        passed = self.passed[index]
        if passed.all():
            return self._arrive(group, pc, action, number, count, predicate)
        self.run.activation.park(group, pc, ~passed)
        return True

    def _enter(self, group: Group, pc: int, action: BarrierAction, number: Any, count: Any, predicate: Any) -> None:
        index = group.index
        chosen = np.ones(group.n, bool) if action.arrive_only else (self.key[index] < 0) & ~self.passed[index]
        if not chosen.any():
            return
        key = (group.block * NUMBER + np.asarray(number).astype(np.int64))[chosen]
        self.arrived += np.bincount(key, minlength=len(self.arrived))
        self.expected[key] = group.full(count)[chosen]
        if action.arrive_only:
            return
        new = index[chosen]
        self.key[new], self.pc[new] = key, pc
        if predicate is not None:
            self.predicate[new] = group.full(predicate)[chosen]
            self.reduction = action.reduction

    def _complete(self) -> bool:
        """Lets the lanes of full barriers through."""
        geometry = self.run.geometry
        alive = np.bincount(self.run.everyone.block[self.run.alive], minlength=geometry.blocks).repeat(NUMBER)
        expected = np.where(self.expected > 0, self.expected, alive)
        full = (self.arrived >= expected) & (self.arrived > 0)
        if not full.any():
            return False
        lanes = np.flatnonzero((self.key >= 0) & full[self.key])
        self._require_one_place(lanes)
        if self.reduction is not None:
            block = lanes // geometry.threads
            self.result_lanes[lanes] = _reduce(self.reduction, self.predicate[lanes], block, geometry.blocks)
        self.passed[lanes], self.key[lanes] = True, -1
        self.arrived[full] = 0
        self.run.shared.synchronise(np.flatnonzero(full) // NUMBER)
        self.run.activation.wake()
        return True

    def _require_one_place(self, lanes: np.ndarray) -> None:
        """Threads of a block that meet at barrier 0 without a count must be at the same instruction, if one is .aligned."""
        plain = lanes[(self.key[lanes] % NUMBER == 0) & (self.expected[self.key[lanes]] == 0)]
        if not len(plain):
            return
        first = np.full(self.run.geometry.blocks, -1, np.int64)
        block = plain // self.run.geometry.threads
        first[block[::-1]] = self.pc[plain[::-1]]
        other = plain[self.pc[plain] != first[block]]
        if len(other):
            anywhere = self._anywhere(self.pc[other]) & self._anywhere(first[other // self.run.geometry.threads])
            other = other[~anywhere]
        if len(other):
            self._report_divergence(
                int(other[0]), int(self.pc[other[0]]), int(first[other[0] // self.run.geometry.threads])
            )

    def _anywhere(self, pcs: np.ndarray) -> np.ndarray:
        """Which of them are `barrier` without .aligned, where warps of different roles may meet from different places."""
        steps = self.run.activation.program.flow.steps
        found = [pc for pc in np.unique(pcs) if _may_differ(steps[pc].instruction)]
        return np.isin(pcs, found)

    def _report_divergence(self, lane: int, pc: int, first: int) -> None:
        steps = self.run.activation.program.flow.steps
        at = [steps[p].instruction.location for p in (first, pc)]
        lines = " and ".join(f"line {a.line}" if a else "an unknown line" for a in at)
        raise Fault("divergence", f"threads of one block wait at different barriers, at {lines}", lane, steps[pc])

    def lanes_left(self, group: Group) -> None:
        """Lanes have exited; barriers that wait for all threads may be full now."""
        if self._ready and self.arrived.any():
            self._complete()

    def reduced(self, group: Group) -> Any:
        """The result of the reduction that the group has just passed: a count, or 0 and 1; uint32 (n,)."""
        return self._reduced


def _may_differ(ins: Instruction) -> bool:
    return ins.name == "barrier" and not ins.has("aligned")


def _reduce(kind: str, predicate: np.ndarray, block: np.ndarray, blocks: int) -> np.ndarray:
    true = np.bincount(block[predicate], minlength=blocks)
    every = np.bincount(block, minlength=blocks)
    results: dict[str, np.ndarray] = {"popc": true, "or": true > 0, "and": true == every}
    reduced: np.ndarray = results[kind].astype(np.uint32)[block]
    return reduced
