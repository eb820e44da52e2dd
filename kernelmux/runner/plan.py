"""Which item a worker gets next. Nothing here knows of processes or of time, so that it can be tried in simulated time.

The longest begin first, so that no worker is left with one at the end. Items of a group stay with the worker that took the
first of them, as long as other groups are left; then whoever has nothing to do takes from the longest group. An item that
needs a GPU alone waits until nothing runs on that GPU, and keeps others away from it. An item whose memory is not free
there waits; smaller ones behind it go ahead.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from kernelmux.runner.item import Item, Slot

COMPILERS, MEMORY, OTHERS, NOTHING = "compilers", "memory", "others", "nothing"  # what a slot without an item waits for
AHEAD = 16  # how many items behind one that does not fit are looked at

_Kind = tuple[int, bool, bool, str]


@dataclass
class _Group:
    """Items that one worker runs after one another; `order` of the first. name: of theirs, "" for an item by itself."""

    order: tuple[int, float, int]
    items: deque[Item]
    name: str = ""
    owner: str = ""
    seconds: float = 0.0

    def __lt__(self, other: _Group) -> bool:
        return self.order < other.order


@dataclass
class _Gpu:
    """What runs on a GPU."""

    running: int = 0
    alone: bool = False
    promised: int = 0


@dataclass
class Plan:
    """The items that are left, and what runs. `next` gives a slot its item, `end` takes it back."""

    items: Iterable[Item]
    left: int = 0  # items that have not ended
    seconds: float = 0.0  # that those which have not begun are expected to take
    _queues: dict[_Kind, list[_Group]] = field(default_factory=lambda: defaultdict(list))
    _owned: dict[str, _Group] = field(default_factory=dict)  # by slot
    _named: dict[tuple[_Kind, str], _Group] = field(default_factory=dict)  # those with items that have not begun
    _open: set[str] = field(default_factory=set)  # items that have not ended
    _waiting: dict[str, list[Item]] = field(default_factory=lambda: defaultdict(list))  # by the item before
    _gpus: dict[str, _Gpu] = field(default_factory=lambda: defaultdict(_Gpu))
    _running: dict[str, tuple[Item, Slot]] = field(default_factory=dict)
    _number: int = 0

    def __post_init__(self) -> None:
        self.add(self.items)

    def add(self, items: Iterable[Item]) -> None:
        """More items; those of a group that is there already come behind its others."""
        groups: dict[tuple[_Kind, str], list[Item]] = {}
        every = list(items)
        self._open.update(item.id for item in every)
        for item in every:
            self.left, self.seconds = self.left + 1, self.seconds + item.seconds
            if item.after in self._open:
                self._waiting[item.after].append(item)
            else:
                groups.setdefault((_kind(item), item.group or f"\0{item.id}"), []).append(item)
        for found in groups.values():
            self._join(found)

    def _join(self, items: list[Item], first: bool = False) -> None:
        """Put items of one group behind those of it that have not begun, or make it. first: before all others."""
        kind, seconds = _kind(items[0]), sum(item.seconds for item in items)
        name, rank = ("", -1) if first else (items[0].group, min(item.rank for item in items))
        if name and (group := self._named.get((kind, name))):
            group.items.extend(items)
            group.seconds += seconds
            return
        self._number += 1
        made = _Group((rank, -seconds, self._number), deque(items), name, "", seconds)
        heapq.heappush(self._queues[kind], made)
        if name:
            self._named[kind, name] = made

    def next(self, slot: Slot) -> Item | None:
        """The item that a slot begins now, None if there is none for it now; `waits_for` says why."""
        gpu = self._gpus[slot.gpu] if slot.gpu else None
        if gpu and (gpu.alone or (slot.alone and gpu.running)):
            return None
        group = self._owned.get(slot.id)
        if not (group and group.items):
            group = self._unowned(slot, gpu) or self._longest(slot)
        elif (better := self._first(slot, gpu)) and better.order[0] < group.items[0].rank:
            self._give_up(group)
            group = self._unowned(slot, gpu)
        if group is None or not _fits(group.items[0], slot, gpu):
            return None
        return self._begin(group, slot, gpu)

    def _give_up(self, group: _Group) -> None:
        """Whoever comes first may own it; its place is that of what is left of it."""
        self._owned.pop(group.owner, None)
        group.owner, group.order = "", (group.items[0].rank, -group.seconds, group.order[2])
        heapq.heappush(self._queues[_kind(group.items[0])], group)

    def _begin(self, group: _Group, slot: Slot, gpu: _Gpu | None) -> Item:
        item = group.items.popleft() if group.owner in ("", slot.id) else group.items.pop()
        group.seconds -= item.seconds
        self.seconds -= item.seconds
        self._running[slot.id] = item, slot
        if gpu and item.gpus:
            gpu.running, gpu.alone, gpu.promised = gpu.running + 1, item.alone, gpu.promised + item.memory
        if not group.items:
            self._owned.pop(group.owner, None)
            self._named.pop((_kind(item), group.name), None)
        return item

    def _first(self, slot: Slot, gpu: _Gpu | None) -> _Group | None:
        """The group without an owner that this slot would take."""
        heads = (q[0] for kind, q in self._queues.items() if q and _admits(slot, kind))
        return min((g for g in heads if _fits(g.items[0], slot, gpu)), default=None)

    def _unowned(self, slot: Slot, gpu: _Gpu | None) -> _Group | None:
        """Take the first group without an owner whose first item fits."""
        queues = sorted((q for kind, q in self._queues.items() if q and _admits(slot, kind)), key=lambda q: q[0])
        for queue in queues:
            passed: list[_Group] = []
            while queue and len(passed) < AHEAD and not _fits(queue[0].items[0], slot, gpu):
                passed.append(heapq.heappop(queue))
            found = heapq.heappop(queue) if queue and len(passed) < AHEAD else None
            for group in passed:
                heapq.heappush(queue, group)
            if found:
                found.owner = slot.id
                self._owned[slot.id] = found
                return found
        return None

    def _longest(self, slot: Slot) -> _Group | None:
        """The group of another slot with most left, whose last item this one may take."""
        found = (g for g in self._owned.values() if g.items and slot.admits(g.items[-1]))
        return max(found, key=lambda group: group.seconds, default=None)

    def end(self, slot: Slot) -> Item:
        """The slot has ended its item; what waited for that may begin."""
        item = self._release(slot)
        self.left -= 1
        self._open.discard(item.id)
        for one in self._waiting.pop(item.id, ()):
            self._join([one])
        return item

    def again(self, slot: Slot) -> Item:
        """The slot has not ended its item: it comes before all others."""
        item = self._release(slot)
        self.seconds += item.seconds
        self._join([item], first=True)
        return item

    def _release(self, slot: Slot) -> Item:
        item, _ = self._running.pop(slot.id)
        if slot.gpu and item.gpus:
            gpu = self._gpus[slot.gpu]
            gpu.running, gpu.alone, gpu.promised = gpu.running - 1, False, gpu.promised - item.memory
        return item

    def drop(self, slot: Slot) -> None:
        """A slot is gone: others take what it owned."""
        if group := self._owned.pop(slot.id, None):
            self._named.pop((_kind(group.items[0]), group.name), None)
            self._join(list(group.items))

    def rest(self) -> list[Item]:
        """Take all items that have not begun and are not waiting for another: nothing else begins."""
        found = [i for q in self._queues.values() for g in q for i in g.items]
        found += [i for g in self._owned.values() for i in g.items]
        found += [i for waiting in self._waiting.values() for i in waiting]
        self._queues.clear()
        self._owned.clear()
        self._named.clear()
        self._waiting.clear()
        self.left -= len(found)
        self.seconds = 0.0
        return found

    def item_of(self, slot: Slot) -> Item:
        """What runs in a slot."""
        return self._running[slot.id][0]

    def running(self, gpu: str = "") -> list[Item]:
        """What runs, on one GPU or anywhere."""
        return [item for item, slot in self._running.values() if not gpu or slot.gpu == gpu]

    def waits_for(self, slot: Slot) -> str:
        """What a slot that got no item waits for."""
        if any(q for kind, q in self._queues.items() if _admits(slot, kind)):
            gpu = self._gpus.get(slot.gpu)
            return OTHERS if gpu and (gpu.alone or slot.alone) else MEMORY
        return COMPILERS if self._waiting else NOTHING

    def cards(self) -> Counter[str]:
        """The cards that items which have not begun are for, with their number."""
        every = [i for q in self._queues.values() for g in q for i in g.items]
        return Counter(i.card for i in [*every, *(i for w in self._waiting.values() for i in w)])


def _kind(item: Item) -> _Kind:
    return item.gpus, item.cpu, item.alone, item.card


def _admits(slot: Slot, kind: _Kind) -> bool:
    gpus, cpu, alone, card = kind
    return gpus <= len(slot.gpus) and alone == slot.alone and card in ("", slot.card) and not (cpu and slot.gpus)


def _fits(item: Item, slot: Slot, gpu: _Gpu | None) -> bool:
    """Whether its memory is free; an item that runs beside nothing always fits."""
    return not gpu or not gpu.running or not slot.memory or gpu.promised + item.memory <= slot.memory
