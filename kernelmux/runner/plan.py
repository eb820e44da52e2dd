"""Which item a worker gets next. Nothing here knows of processes or of time, so that it can be tried in simulated time.

The longest begin first, so that no worker is left with one at the end. Items of a group stay with the worker that took the
first of them, as long as other groups are left; then whoever has nothing to do takes from the longest group. An item that
needs a GPU alone waits until nothing runs on that GPU: what comes behind it in this order does not begin there, and once
the GPU is free others of its kind follow. An item whose memory is not free there waits; smaller ones behind it go ahead,
but no more than `PATIENCE` of them.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from kernelmux.runner.item import Item, Slot

COMPILERS, MEMORY, OTHERS, NOTHING = "compilers", "memory", "others", "nothing"  # what a slot without an item waits for
AHEAD = 16  # how many items behind one that does not fit are looked at
PATIENCE = 64  # how many items go ahead of one that does not fit; then its GPU is kept for it

_Kind = tuple[int, bool, bool, str]
_Name = tuple[_Kind, int, str]


@dataclass(eq=False)
class _Group:
    """Items of one rank that one worker runs after one another; `order` of the first. passed: how many went ahead.

    name: by which more items find it while it has some, None for none.
    """

    order: tuple[int, float, int]
    items: deque[Item]
    name: _Name | None = None
    owner: str = ""
    seconds: float = 0.0
    passed: int = 0

    def __lt__(self, other: _Group) -> bool:
        """Queues are sorted so that the first is at the end."""
        return self.order > other.order


@dataclass
class _Gpu:
    """What runs on a GPU. lone: the slot that has it alone in its turn; kept: the group that it is kept for."""

    running: int = 0
    alone: bool = False
    promised: int = 0
    lone: Slot | None = None
    kept: _Group | None = None
    last_alone: bool = False  # whether the item that began last had it alone


@dataclass
class Plan:
    """The items that are left, and what runs. `next` gives a slot its item, `end` takes it back."""

    items: Iterable[Item]
    left: int = 0  # items that have not ended
    seconds: float = 0.0  # that those which have not begun are expected to take
    _queues: dict[_Kind, list[_Group]] = field(default_factory=lambda: defaultdict(list))
    _owned: dict[str, _Group] = field(default_factory=dict)  # by slot
    _named: dict[_Name, _Group] = field(default_factory=dict)
    _open: set[str] = field(default_factory=set)  # items that have not ended
    _waiting: dict[str, list[Item]] = field(default_factory=lambda: defaultdict(list))  # by the item before
    _gpus: dict[str, _Gpu] = field(default_factory=lambda: defaultdict(_Gpu))
    _running: dict[str, tuple[Item, Slot]] = field(default_factory=dict)
    _number: int = 0

    def __post_init__(self) -> None:
        self.add(self.items)

    def add(self, items: Iterable[Item]) -> None:
        """More items. Those of a group that has some which have not begun come behind these."""
        groups: dict[_Name, list[Item]] = {}
        every = list(items)
        known = {item.id for item in every} - self._open
        if len(known) < len(every):
            raise ValueError(f"expected each item once, got {len(every)} items with {len(known)} names")
        self._open |= known
        for item in every:
            self.left, self.seconds = self.left + 1, self.seconds + item.seconds
            if item.after in self._open:
                self._waiting[item.after].append(item)
            else:
                groups.setdefault(_name(item), []).append(item)
        new = [self._group(found) for found in groups.values() if not self._joins(found)]
        for group in new:
            self._queues[_kind(group.items[0])].append(group)
        for kind in {_kind(group.items[0]) for group in new}:
            self._queues[kind].sort()

    def _joins(self, items: list[Item]) -> bool:
        """Put items of one group behind its others; False if there are none."""
        if group := self._named.get(_name(items[0])):
            group.items.extend(items)
            group.seconds += sum(item.seconds for item in items)
        return group is not None

    def _group(self, items: list[Item], rank: int | None = None) -> _Group:
        self._number += 1
        total = sum(item.seconds for item in items)
        name = _name(items[0]) if items[0].group and rank is None else None
        order = items[0].rank if rank is None else rank, -total, self._number
        made = _Group(order, deque(items), name, "", total)
        if name:
            self._named[name] = made
        return made

    def next(self, slot: Slot) -> Item | None:
        """The item that a slot begins now, None if there is none for it now; `waits_for` says why."""
        gpu = self._gpus[slot.gpu] if slot.gpu else None
        if gpu and slot.alone:
            gpu.lone = slot
        if gpu and (gpu.alone or (slot.alone and gpu.running)):
            return None
        own, kept = self._owned.get(slot.id), gpu and not slot.alone and gpu.kept
        if kept and not kept.owner:
            group = kept if _fits(kept.items[0], slot, gpu) else None
        else:
            own = own if own and _fits(own.items[0], slot, gpu) else None
            group = self._unowned(slot, gpu, own) or own or self._longest(slot, gpu)
        if group is None or (gpu and not slot.alone and self._is_for_lone(gpu, group)):
            return None
        if not group.owner:
            self._take(group, slot, gpu)
        return self._begin(group, slot, gpu)

    def _begin(self, group: _Group, slot: Slot, gpu: _Gpu | None) -> Item:
        item = group.items.popleft() if group.owner == slot.id else group.items.pop()
        group.seconds -= item.seconds
        self.seconds -= item.seconds
        self._running[slot.id] = item, slot
        if gpu:
            gpu.running, gpu.alone, gpu.promised = gpu.running + 1, item.alone, gpu.promised + item.memory
            gpu.last_alone = item.alone
        if not group.items:
            self._owned.pop(group.owner, None)
            self._forget(group)
        return item

    def _forget(self, group: _Group) -> None:
        """Let no more items find a group."""
        if group.name:
            self._named.pop(group.name, None)
            group.name = None

    def _queues_of(self, slot: Slot) -> list[list[_Group]]:
        return [queue for kind, queue in self._queues.items() if queue and _admits(slot, kind)]

    def _unowned(self, slot: Slot, gpu: _Gpu | None, own: _Group | None) -> _Group | None:
        """The first group without an owner whose first item fits; if the slot has its own, only of a lower rank."""
        firsts = (
            next((group for group in queue[: -AHEAD - 1 : -1] if _fits(group.items[0], slot, gpu)), None)
            for queue in self._queues_of(slot)
        )
        found = max((group for group in firsts if group), default=None)
        return found if found and not (own and found.order[0] >= own.order[0]) else None

    def _take(self, group: _Group, slot: Slot, gpu: _Gpu | None) -> None:
        """Make the slot the owner of a group; what it has goes back to the others."""
        queue = self._queues[_kind(group.items[0])]
        place = len(queue) - 1
        while queue[place] is not group:
            queue[place].passed += 1
            if gpu and queue[place].passed % PATIENCE == 0:
                gpu.kept = queue[place]
            place -= 1
        del queue[place]
        if before := self._owned.pop(slot.id, None):
            before.owner = ""
            insort(self._queues[_kind(before.items[0])], before)
        group.owner, self._owned[slot.id] = slot.id, group

    def _is_for_lone(self, gpu: _Gpu, group: _Group) -> bool:
        """Whether the GPU is left to an item that needs it alone, and not to a group."""
        if gpu.lone is None:
            return False
        firsts = [queue[-1] for queue in self._queues_of(gpu.lone)]
        firsts += [self._owned[gpu.lone.id]] if gpu.lone.id in self._owned else []
        return bool(firsts) and (gpu.last_alone or max(firsts).order < group.order)

    def _longest(self, slot: Slot, gpu: _Gpu | None) -> _Group | None:
        """The group of another slot with most left, whose last item this one may take."""
        found = (g for g in self._owned.values() if slot.admits(g.items[-1]) and _fits(g.items[-1], slot, gpu))
        return max(found, key=lambda group: group.seconds, default=None)

    def end(self, slot: Slot) -> Item:
        """The slot has ended its item; what waited for that may begin."""
        item = self._release(slot)
        self.left -= 1
        self._open.discard(item.id)
        for one in self._waiting.pop(item.id, ()):
            self._add(one)
        return item

    def again(self, slot: Slot) -> Item:
        """The slot has not ended its item: it comes before all others."""
        item = self._release(slot)
        self.seconds += item.seconds
        self._add(item, min(-1, item.rank))
        return item

    def _release(self, slot: Slot) -> Item:
        item, _ = self._running.pop(slot.id)
        if slot.gpu:
            gpu = self._gpus[slot.gpu]
            gpu.running, gpu.alone, gpu.promised = gpu.running - 1, False, gpu.promised - item.memory
        return item

    def _add(self, item: Item, rank: int | None = None) -> None:
        if rank is None and self._joins([item]):
            return
        insort(self._queues[_kind(item)], self._group([item], rank))

    def drop(self, slot: Slot) -> None:
        """A slot is gone: others take what it owned."""
        if (gpu := self._gpus[slot.gpu]).lone == slot:
            gpu.lone = None
        if group := self._owned.pop(slot.id, None):
            self._forget(group)
            for item in group.items:
                self._add(item)

    def rest(self) -> list[Item]:
        """Take all items that have not begun: nothing else begins."""
        found = [i for q in self._queues.values() for g in reversed(q) for i in g.items]
        found += [i for g in self._owned.values() for i in g.items]
        found += [i for waiting in self._waiting.values() for i in waiting]
        self._queues.clear()
        self._owned.clear()
        self._named.clear()
        self._waiting.clear()
        self._gpus.clear()
        self.left -= len(found)
        self.seconds = 0.0
        return found

    def item_of(self, slot: Slot) -> Item:
        """What runs in a slot."""
        return self._running[slot.id][0]

    def waits_for(self, slot: Slot) -> str:
        """What a slot that got no item waits for."""
        gpu = self._gpus[slot.gpu] if slot.gpu else None
        if queues := self._queues_of(slot):
            beside = not gpu or gpu.alone or slot.alone or any(_fits(q[-1].items[0], slot, gpu) for q in queues)
            return OTHERS if beside else MEMORY
        return COMPILERS if self._waiting else NOTHING


def _kind(item: Item) -> _Kind:
    return item.gpus, item.cpu, item.alone, item.card


def _name(item: Item) -> _Name:
    """The group of an item; one that is in none has a name of its own."""
    return _kind(item), item.rank, item.group or f"\0{item.id}"


def _admits(slot: Slot, kind: _Kind) -> bool:
    gpus, cpu, alone, card = kind
    return gpus <= len(slot.gpus) and alone == slot.alone and card in ("", slot.card) and not (cpu and slot.gpus)


def _fits(item: Item, slot: Slot, gpu: _Gpu | None) -> bool:
    """Whether its memory is free; an item that runs beside nothing always fits."""
    return not gpu or not gpu.running or not slot.memory or gpu.promised + item.memory <= slot.memory
