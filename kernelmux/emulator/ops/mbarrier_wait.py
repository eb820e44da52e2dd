"""mbarrier.test_wait, try_wait, pending_count: asking for a phase, and reading what an arrival has found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmux.emulator.ops import Action, address, operation
from kernelmux.emulator.ops.mbarrier import COUNT_BITS, MAX_COUNT, Mbarriers, shared_offsets
from kernelmux.emulator.ptx.parser import Instruction
from kernelmux.emulator.running.executor import PATIENCE

Array = NDArray[Any]
REFUSALS = 8  # times that try_wait gives up waiting while nothing else happens, before it is a deadlock


@operation("mbarrier.pending_count")
def pending_count(ins: Instruction) -> Action:
    """`mbarrier.pending_count.b64 count, state`: arrivals that were missing before the one that returned the state."""
    target, state = ins.operands
    return Action(
        lambda value: (value & np.uint64(MAX_COUNT)).astype(np.uint32),
        inputs=((state, np.uint64),),
        outputs=((target, np.uint32),),
        pure=True,
    )


def _passed(ins: Instruction) -> Callable[..., Array]:
    """Which lanes find the phase they ask for complete; `.parity` gives its lowest bit, otherwise a state does."""
    by_parity = ins.has("parity")

    def passed(group: Any, where: Array, wanted: Any) -> Array:
        barriers = Mbarriers.of(group)
        place = barriers.place(group, shared_offsets(ins, group, where), own=True)
        barriers.deliver(group, place)
        phase = barriers.phase[place]
        if by_parity:
            complete: Array = phase & 1 != group.full(wanted).astype(np.int64) & 1
            return complete
        asked = (group.full(wanted) >> np.uint64(COUNT_BITS)).astype(np.int64)
        _require_recent(group, phase - asked)
        later: Array = phase > asked
        return later

    return passed


def _require_recent(group: Any, age: Array) -> None:
    """A state is good for its own phase and until the end of the next one."""
    wrong = (age < 0) | (age > 1)
    if wrong.any():
        message = "the state belongs neither to the current phase of the mbarrier nor to the one before"
        group.fail("asynchronous", message, wrong)


@operation("mbarrier.test_wait")
def test_wait(ins: Instruction) -> Action:
    """`mbarrier.test_wait{.parity}{.sem.scope}{.shared}.b64 done, [p], parity or state`: does not block."""
    return Action(_passed(ins), inputs=_inputs(ins), outputs=((ins.operands[0], np.bool_),))


@operation("mbarrier.try_wait")
def try_wait(ins: Instruction) -> Action:
    """`mbarrier.try_wait{.parity}{.sem.scope}{.shared}.b64 done, [p], parity or state{, time}`.

    Blocks until the phase is complete. If no other thread can go on, it returns false, as a GPU does after its time
    limit: the phase may wait for an instruction that follows in the same thread.
    """
    passed = _passed(ins)

    def ready(group: Any, where: Array, wanted: Any) -> Any:
        complete = passed(group, where, wanted)
        answers = Answers.of(group)
        answers.last = np.bool_(True) if complete.all() else complete
        return complete | answers.gives_up(group)

    def run(group: Any, *_: Any) -> Any:
        return Answers.of(group).last

    return Action(run, inputs=_inputs(ins), outputs=((ins.operands[0], np.bool_),), ready=ready)


class Answers:
    """The answer of the try_wait that runs now, and how often lanes have given up since anything has happened."""

    def __init__(self, run: Any) -> None:
        self.last: Any = np.bool_(True)
        self.refusals = np.zeros(run.geometry.lanes, np.int64)
        self.events = 0

    @staticmethod
    def of(group: Any) -> Answers:
        """Those of the chunk that `group` belongs to."""
        found: Answers = group.run.kept("try_wait", lambda: Answers(group.run))
        return found

    def gives_up(self, group: Any) -> bool:
        """Whether the group stops waiting: all groups wait, and its lanes have stopped at most `REFUSALS` times."""
        if group.run.activation.idle_rounds < PATIENCE:
            return False
        events = Mbarriers.of(group).events
        if events != self.events:
            self.events = events
            self.refusals[:] = 0
        self.refusals[group.index] += 1
        return bool((self.refusals[group.index] <= REFUSALS).any())


def _inputs(ins: Instruction) -> Any:
    """The barrier and the phase; a time limit after them changes nothing."""
    return (address(ins.operands[1]), (ins.operands[2], np.uint32 if ins.has("parity") else np.uint64))
