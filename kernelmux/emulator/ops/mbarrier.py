"""mbarrier: barriers in shared memory that count arrivals and bytes of asynchronous copies.

A barrier completes its phase when no arrival and no byte is missing. Copies under way are delivered when a thread asks
for the phase, never earlier: a kernel that does not wait reads memory without its data. A state, as arrivals return it,
is `phase << 20 | arrivals that were still missing`. Waiting is in mbarrier_wait.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.memory.global_memory import OFFSET, SHARED, SHIFT
from kernelmux.emulator.ops import Action, address, operation
from kernelmux.emulator.ops.pending_at_exit import at_the_end, never_waited_for
from kernelmux.emulator.ptx.operands import SINK
from kernelmux.emulator.ptx.parser import Address, Instruction
from kernelmux.emulator.running.cluster import split

Array = NDArray[Any]
WORD = 8  # bytes of a barrier; those of a block are numbered by offset / 8
COUNT_BITS = 20
MAX_COUNT = (1 << COUNT_BITS) - 1  # of arrivals, and of bytes in either direction
ELSEWHERE = "only threads of its own block may do that with an mbarrier"


@dataclass(frozen=True)
class Flight:
    """A copy under way: how it lands for the group that waits for it, and which instruction of which lane began it.

    awaited: that no thread asks for it is an error; an arrival of products (tcgen05.commit) may find no thread.
    """

    land: Callable[[Any], None]
    ins: Instruction
    lane: int
    awaited: bool = True


class Mbarriers:
    """All barriers of a chunk of blocks, as arrays `[blocks, offset / 8]`."""

    def __init__(self, run: Any) -> None:
        shape = (len(run.shared.bytes), run.shared.size // WORD + 1)
        self.valid = np.zeros(shape, np.bool_)
        self.expected = np.zeros(shape, np.int64)  # arrivals of a phase
        self.pending = np.zeros(shape, np.int64)  # arrivals still missing
        self.bytes = np.zeros(shape, np.int64)  # bytes still missing
        self.phase = np.zeros(shape, np.int64)  # completed phases
        self.ordering = np.zeros(shape, np.bool_)  # whether anything in this phase was not .relaxed
        self.made = np.zeros(shape, np.int64)  # clock of mbarrier.init, and the warp that did it (full mode)
        self.maker = np.zeros(shape, np.int64)
        self.events = 0  # arrivals, announcements and copies so far: whether anything has happened since a moment
        self.flights: dict[tuple[int, int], list[Flight]] = defaultdict(list)
        self.last: dict[tuple[int, int], Flight] = {}  # that ever reported there
        self.run = run

    @staticmethod
    def of(group: Any) -> Mbarriers:
        """The barriers of the chunk that `group` belongs to."""
        found: Mbarriers = group.run.kept("mbarrier", lambda: Mbarriers(group.run), Mbarriers.check_landed)
        return found

    def place(self, group: Any, where: Array, *, initialised: bool = True, own: bool = False) -> tuple[Array, Array]:
        """Index of the barrier at each lane's shared-memory address, checked; own: it may not be another block's."""
        block, offset = split(group, where)
        if own and block is not group.block and (block != group.block).any():
            group.fail("asynchronous", ELSEWHERE, block != group.block)
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
        if initialised and self.run.shared.shadow is not None:
            self.require_known(group, place, slice(None))
        return place

    def require_known(self, group: Any, place: tuple[Any, Any], lanes: Any) -> None:
        """Fails unless a barrier stands between mbarrier.init and its use by other warps, or other blocks."""
        epoch = np.broadcast_to(self.run.shared.shadow.epoch, (len(self.valid),))[group.block[lanes]]
        hidden = np.atleast_1d((self.made[place] >= epoch) & (self.maker[place] != group.warp[lanes]))
        if hidden.any():
            position = int(np.flatnonzero(hidden)[0]) if isinstance(lanes, slice) else lanes
            group.fail("race", "this mbarrier was initialised by another warp, and no barrier since", [position])

    def _require_alive(self, group: Any, block: Array) -> None:
        """A block of a cluster may end only when no other one needs its shared memory."""
        alive = self.run.alive.reshape(len(self.valid), -1).any(axis=1)
        if not alive[block].all():
            group.fail("asynchronous", "this mbarrier belongs to a block that has already ended", ~alive[block])

    def complete(self, group: Any, place: tuple[Array, Array], *, ordering: bool = True) -> Array:
        """Start the next phase where nothing is missing any more; says where. ordering: not part of a .relaxed arrival."""
        self.events += 1
        pending, missing = self.pending[place], self.bytes[place]
        if (pending < 0).any():
            group.fail("asynchronous", "more arrivals at an mbarrier than mbarrier.init announced", pending < 0)
        if (np.abs(missing) > MAX_COUNT).any():
            message = f"an mbarrier can expect {MAX_COUNT} bytes at a time"
            group.fail("asynchronous", message, np.abs(missing) > MAX_COUNT)
        if ordering:
            self.ordering[place] = True
        done: Array = (pending == 0) & (missing == 0)
        if np.any(done):
            self._step(place[0][done], place[1][done])
        return done

    def _step(self, blocks: Array, words: Array) -> None:
        """The next phase; several lanes may name one barrier, which must step once."""
        blocks, words = np.unique(np.stack([blocks, words]), axis=1)
        self.phase[blocks, words] += 1
        self.pending[blocks, words] = self.expected[blocks, words]
        ordered = blocks[self.ordering[blocks, words]]
        if len(ordered):
            self.run.shared.synchronise(np.unique(ordered))
        self.ordering[blocks, words] = False

    def states(self, place: tuple[Array, Array], counts: Any) -> Array:
        """What every lane finds before its own arrival: lanes arrive one after another."""
        before = np.zeros(len(place[0]), np.int64)
        counts = np.broadcast_to(counts, before.shape)
        for key in set(zip(place[0].tolist(), place[1].tolist(), strict=True)):
            mine = (place[0] == key[0]) & (place[1] == key[1])
            before[mine] = np.cumsum(counts[mine]) - counts[mine]
        return (self.phase[place] << COUNT_BITS | self.pending[place] - before).astype(np.uint64)

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
        for flight in (f for flights in self.flights.values() for f in flights if f.awaited):
            raise never_waited_for(self.run, flight.ins, flight.lane, "this copy, by its mbarrier")
        for key, flight in self.last.items():
            if self.valid[key] and self.bytes[key] < 0:
                message = f"copies brought {-self.bytes[key]} bytes more than their mbarrier expected (expect_tx)"
                raise at_the_end(self.run, flight.ins, flight.lane, message)


def _pointer(ins: Instruction, position: int = 0) -> Any:
    """The barrier's operand; generic addresses are translated when the instruction runs."""
    return address(ins.operands[position])


def shared_offsets(ins: Instruction, group: Any, where: Any) -> Array:
    """Offsets in shared memory of addresses that may be generic."""
    addresses: Array = group.full(where)
    if ins.space == "shared":
        return addresses
    other = addresses >> SHIFT != SHARED
    if other.any():
        group.fail("bad pointer", f"{ins.opcode} through a generic address that is not in shared memory", other)
    return addresses & OFFSET


# --- life -----------------------------------------------------------------------------------------------------


@operation("mbarrier.init")
def init(ins: Instruction) -> Action:
    """`mbarrier.init{.shared{::cta}}.b64 [p], count`."""

    def run(group: Any, where: Array, count: Any) -> None:
        barriers = Mbarriers.of(group)
        place = barriers.place(group, shared_offsets(ins, group, where), initialised=False, own=True)
        count = group.full(count).astype(np.int64)
        wrong = (count < 1) | (count > MAX_COUNT)
        if wrong.any():
            group.fail("asynchronous", f"mbarrier.init with a count outside 1 to {MAX_COUNT}", wrong)
        if group.run.checks == "full" and barriers.valid[place].any():
            message = "mbarrier.init where there is an mbarrier already, with no mbarrier.inval since"
            group.fail("asynchronous", message, barriers.valid[place])
        barriers.valid[place], barriers.expected[place], barriers.pending[place] = True, count, count
        barriers.bytes[place], barriers.phase[place], barriers.ordering[place] = 0, 0, False
        if (shadow := group.run.shared.shadow) is not None:
            barriers.made[place], barriers.maker[place] = shadow.clock, group.warp

    return Action(run, inputs=(_pointer(ins), (ins.operands[1], np.uint32)))


@operation("mbarrier.inval")
def inval(ins: Instruction) -> Action:
    """`mbarrier.inval{.shared{::cta}}.b64 [p]`."""

    def run(group: Any, where: Array) -> None:
        barriers = Mbarriers.of(group)
        barriers.valid[barriers.place(group, shared_offsets(ins, group, where), own=True)] = False

    return Action(run, inputs=(_pointer(ins),))


# --- arrivals and bytes ---------------------------------------------------------------------------------------


@operation("mbarrier.arrive", "mbarrier.arrive_drop")
def arrive(ins: Instruction) -> Action:
    """`mbarrier.arrive{.expect_tx}{.noComplete}{.sem.scope}{.shared}.b64 {state,} [p]{, count or bytes}`.

    arrive_drop lowers the count of later phases as well. Only the own block's barrier returns a state.
    """
    has_result = not isinstance(ins.operands[0], Address)
    wants_state = has_result and ins.operands[0] is not SINK
    if wants_state and ins.has("shared::cluster"):
        raise Unsupported(f"{ins.opcode} returns no state: its destination must be _")
    position = int(has_result)
    expects, drops, completes = ins.has("expect_tx"), ins.has("arrive_drop"), not ins.has("noComplete")
    ordering = not ins.has("relaxed")

    def run(group: Any, where: Array, value: Any = 1) -> Array | None:
        barriers = Mbarriers.of(group)
        place = barriers.place(group, shared_offsets(ins, group, where), own=wants_state)
        if expects:
            np.add.at(barriers.bytes, place, group.full(value).astype(np.int64))
        count = _counted(group, 1 if expects else value)
        state = barriers.states(place, count) if wants_state else None
        if drops:
            np.subtract.at(barriers.expected, place, count)
        np.subtract.at(barriers.pending, place, count)
        done = barriers.complete(group, place, ordering=ordering)
        if not completes and done.any():
            group.fail("asynchronous", f"{ins.opcode} completes the phase, which it must not", done)
        return state

    inputs = (_pointer(ins, position), *((operand, np.uint32) for operand in ins.operands[position + 1 :]))
    return Action(run, inputs=inputs, outputs=((ins.operands[0], np.uint64),) if wants_state else ())


def _counted(group: Any, count: Any) -> Any:
    """The arrivals that a lane counts for."""
    count = np.asarray(count).astype(np.int64)
    wrong = (count < 1) | (count > MAX_COUNT)
    if wrong.any():
        group.fail("asynchronous", f"an arrival that counts for {np.max(count)}, expected 1 to {MAX_COUNT}", wrong)
    return count


@operation("mbarrier.expect_tx", "mbarrier.complete_tx")
def transaction(ins: Instruction) -> Action:
    """`mbarrier.expect_tx{.relaxed.scope}{.shared}.b64 [p], bytes`; complete_tx takes bytes off, as a copy would."""
    sign = 1 if ins.has("expect_tx") else -1

    def run(group: Any, where: Array, count: Any) -> None:
        barriers = Mbarriers.of(group)
        place = barriers.place(group, shared_offsets(ins, group, where))
        np.add.at(barriers.bytes, place, sign * group.full(count).astype(np.int64))
        barriers.complete(group, place, ordering=False)

    return Action(run, inputs=(_pointer(ins), (ins.operands[1], np.uint32)))
