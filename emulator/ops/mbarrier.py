"""mbarrier: barriers in shared memory that count arrivals and bytes of asynchronous copies.

A barrier completes its phase when no arrival and no byte is missing. Copies under way are delivered when somebody asks
for the phase, never earlier: a kernel that does not wait reads memory without its data.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmux.emulator.cluster import split
from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.ops import Action, address, operation
from kernelmux.emulator.ops.unfinished import at_the_end, never_waited_for
from kernelmux.emulator.parser import Address, Instruction

Array = NDArray[Any]
WORD = 8  # bytes of a barrier; those of a block are numbered by offset / 8
MAX_COUNT = (1 << 20) - 1


@dataclass(frozen=True)
class Flight:
    """A copy under way: how it lands for the group that waits for it, and which instruction of which lane began it."""

    land: Callable[[Any], None]
    ins: Instruction
    lane: int


class Barriers:
    """All barriers of a chunk of blocks, as arrays `[blocks, offset / 8]`."""

    def __init__(self, run: Any) -> None:
        shape = (len(run.shared.bytes), run.shared.size // WORD + 1)
        self.valid = np.zeros(shape, np.bool_)
        self.expected = np.zeros(shape, np.int64)  # arrivals of a phase
        self.pending = np.zeros(shape, np.int64)  # arrivals still missing
        self.bytes = np.zeros(shape, np.int64)  # bytes still missing
        self.phase = np.zeros(shape, np.int64)  # completed phases
        self.flights: dict[tuple[int, int], list[Flight]] = defaultdict(list)
        self.last: dict[tuple[int, int], Flight] = {}  # that ever reported there
        self.run = run

    @staticmethod
    def of(group: Any) -> Barriers:
        """The barriers of the chunk that `group` belongs to."""
        state = group.run.state
        if "mbarrier" not in state:
            state["mbarrier"] = Barriers(group.run)
            group.run.on_finish.append(state["mbarrier"].check_landed)
        found: Barriers = state["mbarrier"]
        return found

    def place(self, group: Any, where: Array, *, initialised: bool = True) -> tuple[Array, Array]:
        """Index of the barrier at each lane's shared-memory address, checked."""
        block, offset = split(group, where)
        wrong = offset % WORD != 0
        if wrong.any():
            group.fail("misaligned", "mbarrier is not aligned to 8 bytes", wrong)
        outside = (offset < 0) | (offset + WORD > self.run.shared.size)
        if outside.any():
            group.fail("out of bounds", "mbarrier lies outside shared memory", outside)
        place = (block, offset // WORD)
        if initialised and not self.valid[place].all():
            group.fail("asynchronous", "mbarrier is used but not initialised (mbarrier.init)", ~self.valid[place])
        if block is not group.block:
            self._require_alive(group, block)
        return place

    def _require_alive(self, group: Any, block: Array) -> None:
        """A block of a cluster may end only when no other one needs its shared memory."""
        alive = self.run.alive.reshape(len(self.valid), -1).any(axis=1)
        if not alive[block].all():
            group.fail("asynchronous", "this mbarrier belongs to a block that has already ended", ~alive[block])

    def complete(self, group: Any, place: tuple[Array, Array]) -> None:
        """Start the next phase where nothing is missing any more."""
        if (self.pending[place] < 0).any():
            message = "more arrivals at an mbarrier than mbarrier.init announced"
            group.fail("asynchronous", message, self.pending[place] < 0)
        done = (self.pending[place] == 0) & (self.bytes[place] == 0)
        if not np.any(done):
            return
        # Several lanes may name one barrier, which must step once.
        blocks, words = np.unique(np.stack([place[0][done], place[1][done]]), axis=1)
        self.phase[blocks, words] += 1
        self.pending[blocks, words] = self.expected[blocks, words]
        self.run.shared.synchronise(np.unique(blocks))

    def arrive(self, group: Any, place: tuple[Array, Array], counts: Any) -> None:
        np.subtract.at(self.pending, place, counts)
        self.complete(group, place)

    def start(self, key: tuple[int, int], flight: Flight) -> None:
        """A copy is under way that reports to the barrier `key` (block, offset / 8)."""
        self.flights[key].append(flight)
        self.last[key] = flight

    def deliver(self, group: Any, place: tuple[Array, Array]) -> None:
        """Let the copies arrive that report to these barriers."""
        for key in self.flights and sorted(set(zip(place[0].tolist(), place[1].tolist(), strict=True))):
            for flight in self.flights.pop(key, ()):
                flight.land(group)

    def check_landed(self) -> None:
        """At the end of a chunk: in full mode an error for copies under way, or with more bytes than were announced."""
        if self.run.checks != "full":
            return
        for flights in self.flights.values():
            raise never_waited_for(self.run, flights[0].ins, flights[0].lane, "this copy, by its mbarrier")
        for key, flight in self.last.items():
            if self.valid[key] and self.bytes[key] < 0:
                message = f"copies brought {-self.bytes[key]} bytes more than their mbarrier expected (expect_tx)"
                raise at_the_end(self.run, flight.ins, flight.lane, message)


def _pointer(ins: Instruction, position: int = 0) -> Any:
    """The barrier's operand; generic addresses are translated when the instruction runs."""
    return address(ins.operands[position])


def shared_offsets(ins: Instruction, group: Any, where: Any) -> Array:
    """Offsets in shared memory of addresses that may be generic."""
    offsets: Array = group.full(where) if ins.space == "shared" else group.generic_to_shared(group.full(where))
    return offsets


# --- life -----------------------------------------------------------------------------------------------------


@operation("mbarrier.init")
def init(ins: Instruction) -> Action:
    """`mbarrier.init.shared.b64 [p], count`."""

    def run(group: Any, where: Array, count: Any) -> None:
        barriers = Barriers.of(group)
        place = barriers.place(group, shared_offsets(ins, group, where), initialised=False)
        count = group.full(count).astype(np.int64)
        wrong = (count < 1) | (count > MAX_COUNT)
        if wrong.any():
            group.fail("asynchronous", f"mbarrier.init with a count outside 1 to {MAX_COUNT}", wrong)
        barriers.valid[place], barriers.expected[place], barriers.pending[place] = True, count, count
        barriers.bytes[place], barriers.phase[place] = 0, 0

    return Action(run, inputs=(_pointer(ins), (ins.operands[1], np.uint32)))


@operation("mbarrier.inval")
def inval(ins: Instruction) -> Action:
    """`mbarrier.inval.shared.b64 [p]`."""

    def run(group: Any, where: Array) -> None:
        barriers = Barriers.of(group)
        barriers.valid[barriers.place(group, shared_offsets(ins, group, where))] = False

    return Action(run, inputs=(_pointer(ins),))


# --- arrivals and bytes ---------------------------------------------------------------------------------------


@operation("mbarrier.arrive", "mbarrier.arrive_drop")
def arrive(ins: Instruction) -> Action:
    """`mbarrier.arrive{.expect_tx}{.noComplete}.shared.b64 {state,} [p]{, count or bytes}`; arrive_drop for good."""
    has_result = not isinstance(ins.operands[0], Address)
    position = int(has_result)
    amount = ins.operands[position + 1 :]
    expects, drops = ins.has("expect_tx"), ins.has("arrive_drop")
    outputs = ((ins.operands[0], np.uint64),) if has_result else ()

    def run(group: Any, where: Array, value: Any = 1) -> Array | None:
        barriers = Barriers.of(group)
        place = barriers.place(group, shared_offsets(ins, group, where))
        state = barriers.phase[place].astype(np.uint64)
        if expects:
            np.add.at(barriers.bytes, place, group.full(value).astype(np.int64))
        count = 1 if expects else group.full(value).astype(np.int64)
        if drops:
            np.subtract.at(barriers.expected, place, count)
        barriers.arrive(group, place, count)
        return state if has_result else None

    inputs = (_pointer(ins, position), *((operand, np.uint32) for operand in amount))
    return Action(run, inputs=inputs, outputs=outputs)


@operation("mbarrier.expect_tx", "mbarrier.complete_tx")
def transaction(ins: Instruction) -> Action:
    """`mbarrier.expect_tx.relaxed.cta.shared.b64 [p], bytes`; complete_tx takes bytes off, as a copy would."""
    sign = 1 if ins.has("expect_tx") else -1

    def run(group: Any, where: Array, count: Any) -> None:
        barriers = Barriers.of(group)
        place = barriers.place(group, shared_offsets(ins, group, where))
        np.add.at(barriers.bytes, place, sign * group.full(count).astype(np.int64))
        barriers.complete(group, place)

    return Action(run, inputs=(_pointer(ins), (ins.operands[1], np.uint32)))


@operation("mbarrier.pending_count")
def pending_count(ins: Instruction) -> Action:
    """Arrivals missing in a state that mbarrier.arrive returned; our states hold the phase only."""
    raise Unsupported(ins.opcode)


# --- waiting --------------------------------------------------------------------------------------------------


def _passed(ins: Instruction) -> Callable[..., Array]:
    """Which lanes find the phase they ask for complete; `.parity` gives its lowest bit, otherwise a state does."""
    by_parity = ins.has("parity")

    def passed(group: Any, where: Array, wanted: Any, *_: Any) -> Array:
        barriers = Barriers.of(group)
        place = barriers.place(group, shared_offsets(ins, group, where))
        barriers.deliver(group, place)
        phase, asked = barriers.phase[place], group.full(wanted).astype(np.int64)
        complete: Array = phase & 1 != asked & 1 if by_parity else phase > asked
        return complete

    return passed


@operation("mbarrier.test_wait")
def test_wait(ins: Instruction) -> Action:
    """`mbarrier.test_wait{.parity}.shared.b64 done, [p], parity`: does not block."""
    return Action(_passed(ins), inputs=_wait_inputs(ins), outputs=((ins.operands[0], np.bool_),))


@operation("mbarrier.try_wait")
def try_wait(ins: Instruction) -> Action:
    """`mbarrier.try_wait{.parity}.shared.b64 done, [p], parity{, time}`: may block, and does so until it is true."""

    def run(group: Any, *_: Any) -> Any:
        return np.bool_(True)

    return Action(run, inputs=_wait_inputs(ins), outputs=((ins.operands[0], np.bool_),), ready=_passed(ins))


def _wait_inputs(ins: Instruction) -> Any:
    return (_pointer(ins, 1), (ins.operands[2], np.uint32 if ins.has("parity") else np.uint64))
