"""A group: lanes at one program counter that run together, with their registers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from kernelmux.emulator.errors import Fault
from kernelmux.emulator.running.lanes import Lanes

if TYPE_CHECKING:
    from kernelmux.emulator.running.chunk_protocol import Chunk

STOPPED = -1  # what a block returns when the executor must choose the next lanes
DEEPEST = 40  # splits below splits, before a group copies its registers and forgets where they came from


class _Missing:
    """A register that was not yet fetched from the group this one was split from."""


MISSING = _Missing()


class Origin:
    """The registers of a group at the moment it was split; the parts fetch theirs only when they need them."""

    def __init__(self, lanes: Lanes, registers: list[Any], parent: Origin | None, positions: np.ndarray | None) -> None:
        self.lanes, self.registers, self.parent, self.positions = lanes, registers, parent, positions
        self.fetched: dict[int, Any] = {}
        self.depth: int = parent.depth + 1 if parent else 1

    def fetch(self, number: int) -> Any:
        """The value of a register for all lanes of the split group."""
        value = self.registers[number]
        if value is MISSING:
            assert self.parent is not None
            value = take(self.parent.fetch(number), self.positions)
            self.registers[number] = self.fetched[number] = value
        return value


def take(value: Any, positions: Any) -> Any:
    """The lanes at `positions` of a register value."""
    if value.__class__ is np.ndarray and value.ndim:
        return value.take(positions, axis=0)
    return value


class Group:
    """Lanes that run together. Operations see this object; all arrays are over its lanes, in ascending order."""

    __slots__ = ("R", "fetched", "lanes", "n", "origin", "pc", "positions", "run", "turn")

    def __init__(self, run: Chunk, lanes: Lanes, registers: list[Any], pc: int) -> None:
        self.run, self.lanes, self.n, self.R, self.pc = run, lanes, lanes.n, registers, pc
        self.origin: Origin | None = None
        self.positions: np.ndarray | None = None  # of our lanes in the origin's
        self.fetched: dict[int, Any] = {}
        self.turn = run.ticks  # when it last ran, or began

    # ---- what operations use

    @property
    def index(self) -> np.ndarray:
        return self.lanes.index

    @property
    def block(self) -> np.ndarray:
        return self.lanes.block

    @property
    def thread(self) -> np.ndarray:
        return self.lanes.thread

    @property
    def warp(self) -> np.ndarray:
        return self.lanes.warp

    @property
    def lane(self) -> np.ndarray:
        return self.lanes.lane

    def full(self, value: Any) -> np.ndarray:
        """A value as an array over the lanes."""
        if value.__class__ is np.ndarray and value.ndim:
            return value
        return np.full(self.n, value)

    def special(self, name: str) -> Any:
        """The value of a special register such as `%tid.x`."""
        try:
            return self.lanes.special(name)
        except KeyError:
            return self.run.counter(name)

    def local_address(self, offset: Any) -> Any:
        """The address of a local variable in the frame of the current call."""
        return offset + offset.dtype.type(self.run.frame)

    def load(self, space: str, address: Any, dtype: Any, count: int = 1, mask: Any = None) -> Any:
        """Reads `count` elements per lane, `(n,)` or `(n, count)`; lanes outside of mask get 0."""
        return self.run.access.load(self, space, address, np.dtype(dtype), count, mask)

    def store(self, space: str, address: Any, values: Any, mask: Any = None) -> None:
        """Writes one element, or a row of `values` `(n, count)`, per lane of mask."""
        self.run.access.store(self, space, address, values, mask)

    def view_of(self, positions: np.ndarray) -> Group:
        """Some of the lanes as a group without registers, for accesses of theirs alone."""
        return Group(self.run, Lanes(self.lanes.geometry, self.index[positions]), [], self.pc)

    def fail(self, kind: str, message: str, lanes: Any = None, earlier: Any = None) -> NoReturn:
        """Raises; `lanes` (bool array, or positions in the group) says which lanes are at fault, the first is named.

        earlier: the step of the access that a race is with.
        """
        if lanes is None:
            raise Fault(kind, message, int(self.index[0]) if self.n == 1 else None)
        positions = np.atleast_1d(lanes)
        if positions.dtype == bool:
            positions = np.flatnonzero(np.broadcast_to(positions, (self.n,)))
        raise Fault(kind, message, int(self.index[positions[0]]), earlier=earlier)

    # ---- what generated code uses

    def branch(self, condition: np.ndarray, target: int, other: int) -> int:
        """Goes to `target` where the condition holds, to `other` elsewhere."""
        count = np.count_nonzero(condition)
        if count == self.n:
            return target
        if count == 0:
            return other
        there = self.part(np.flatnonzero(condition), target)
        here = self.part(np.flatnonzero(~condition), other)
        self.run.activation.runnable(there, here)
        return STOPPED

    def branch_indexed(self, index: Any, targets: tuple[int, ...]) -> int:
        """Goes to the target that each lane's index names."""
        if index.__class__ is not np.ndarray:
            return targets[int(index)] if index < len(targets) else self._bad_index(None)
        if (index >= len(targets)).any():
            self._bad_index(index >= len(targets))
        used = np.unique(index)
        if len(used) == 1:
            return targets[int(used[0])]
        self.run.activation.runnable(*(self.part(np.flatnonzero(index == i), targets[int(i)]) for i in used))
        return STOPPED

    def _bad_index(self, lanes: Any) -> NoReturn:
        self.fail("trap", "brx.idx with an index past the end of its table", lanes)

    def barrier(self, pc: int, action: Any, *inputs: Any) -> bool:
        """Arrives at a barrier; True if some lanes have to wait."""
        return self.run.barriers.arrive(self, pc, action, *inputs)

    def waits(self, pc: int, ready: Any, *inputs: Any) -> bool:
        """Asks a blocking operation; True if some lanes have to wait."""
        state = ready(self, *inputs)
        if state is True or np.all(state):
            return False
        self.run.activation.park(self, pc, ~np.broadcast_to(state, (self.n,)))
        return True

    def stops(self, pc: int, scope: str, mask: Any) -> bool:
        """Before a warp operation in divergent code: True if lanes that it needs are still elsewhere."""
        return self.run.warps.stops(self, pc, scope, mask)

    # ---- splitting and joining

    def part(self, positions: np.ndarray, pc: int) -> Group:
        """The lanes at `positions` as a group of its own."""
        if self.origin is None or self.origin.registers is not self.R:
            if self.origin is not None and self.origin.depth >= DEEPEST:
                self.detach(range(len(self.R)))
            self._become_origin()
        assert self.origin is not None
        part = Group(self.run, Lanes(self.lanes.geometry, self.index[positions]), [MISSING] * len(self.R), pc)
        part.origin, part.positions = self.origin, positions
        return part

    def _become_origin(self) -> None:
        self.origin = Origin(self.lanes, self.R, self.origin, self.positions)
        self.origin.fetched, self.positions = self.fetched, None

    def require(self, numbers: tuple[int, ...]) -> None:
        """Fetches registers that are still with the group this one was split from."""
        registers, origin = self.R, self.origin
        for number in numbers:
            if registers[number] is MISSING:
                assert origin is not None
                registers[number] = self.fetched[number] = take(origin.fetch(number), self.positions)

    def detach(self, numbers: Any) -> None:
        """Fetches all these registers and forgets the origin; others become unknown zeros."""
        self.require(tuple(numbers))
        initial = self.run.initial
        self.R = [initial[i] if value is MISSING else value for i, value in enumerate(self.R)]
        self.origin, self.positions, self.fetched = None, None, {}

    def untouched(self, number: int) -> bool:
        """Whether a register still has the value it had when this group was split off."""
        value = self.R[number]
        return value is MISSING or (number in self.fetched and self.fetched[number] is value)


def join(groups: list[Group], live: tuple[int, ...]) -> Group:
    """One group of the lanes of several at the same place; `live`: the registers that are needed from there on."""
    while len(groups) > 1:
        family = _complete_family(groups)
        if family is None:
            return _join_strangers(groups, live)
        groups = [g for g in groups if g not in family] + [_join_family(family, live)]
    return groups[0]


def _complete_family(groups: list[Group]) -> list[Group] | None:
    """Groups that together are exactly one group that was split."""
    families: dict[int, list[Group]] = {}
    for group in groups:
        if group.origin is not None:
            families.setdefault(id(group.origin), []).append(group)
    for family in families.values():
        assert family[0].origin is not None
        if sum(g.n for g in family) == family[0].origin.lanes.n:
            return family
    return None


def _join_family(family: list[Group], live: tuple[int, ...]) -> Group:
    origin = family[0].origin
    assert origin is not None
    group = Group(family[0].run, origin.lanes, list(origin.registers), family[0].pc)
    group.origin, group.positions, group.fetched = origin.parent, origin.positions, origin.fetched
    for number in live:
        touched = [g for g in family if not g.untouched(number)]
        if touched:
            group.R[number] = _combine(
                group.n, origin.fetch(number), touched, number, covered=len(touched) == len(family)
            )
    return group


def _combine(n: int, base: Any, parts: list[Group], number: int, covered: bool) -> Any:
    """`base` with the parts' values at the parts' positions."""
    values = [g.R[number] for g in parts]
    candidates = values if covered else [*values, base]
    if all(v.__class__ is not np.ndarray for v in candidates) and _all_same(candidates):
        return values[0]
    shape = next((v.shape[1:] for v in values if v.ndim), ())
    result = np.empty((n, *shape), values[0].dtype)
    if not covered:
        result[:] = base
    for group, value in zip(parts, values, strict=True):
        result[group.positions] = value
    return result


def _all_same(values: list[Any]) -> bool:
    first = values[0].tobytes()
    return all(v.tobytes() == first for v in values[1:])


def _join_strangers(groups: list[Group], live: tuple[int, ...]) -> Group:
    run, geometry = groups[0].run, groups[0].lanes.geometry
    for group in groups:
        group.detach(live)
    here = np.zeros(geometry.lanes, bool)
    for group in groups:
        here[group.index] = True
    place = np.cumsum(here) - 1
    lanes = run.everyone if here.all() else Lanes(geometry, np.flatnonzero(here))
    joined = Group(run, lanes, list(run.initial), groups[0].pc)
    for group in groups:
        group.positions = place[group.index]
    for number in live:
        joined.R[number] = _combine(lanes.n, None, groups, number, covered=True)
    return joined
