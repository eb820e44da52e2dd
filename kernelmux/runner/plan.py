"""Which item a worker gets next. Nothing here knows of processes or of time, so that it can be tried in simulated time.

The longest begin first, so that no worker is left with one at the end. Items of a group stay with the worker that took the
first of them, as long as other groups are left; then a worker with nothing to do takes from the longest group. An item that
needs a GPU alone waits until nothing runs on that GPU: what comes behind it in this order does not begin there, and once
the GPU is free others of its kind follow. An item whose memory is not free there waits; smaller ones behind it go ahead,
but no more than `PATIENCE` of them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from kernelmux.runner.item import Slot, WorkItem

# What a slot without an item waits for; compilers: what a GPU alone is to time, others prepare.
COMPILERS, MEMORY, OTHERS, NOTHING = "compilers", "memory", "others", "nothing"
AHEAD = 16  # how many items behind one that does not fit are looked at
PATIENCE = 64  # how many items go ahead of one that does not fit; then its GPU is kept for it

_Kind = tuple[int, bool, bool, str]
_Key = tuple[_Kind, int, str]


@dataclass(eq=False)
class _Group:
    """Items of one rank that one worker runs after one another; `order` of the first. owner: the slot that has them, "" for
    none. passed: how many went ahead.
    """

    order: tuple[int, float, int]
    items: deque[WorkItem]
    owner: str = ""
    passed: int = 0

    def __lt__(self, other: _Group) -> bool:
        """Queues are sorted so that the first is at the end."""
        return self.order > other.order


@dataclass
class _Gpu:
    """What runs on a GPU. lone: the slot that has it alone in its turn; kept: the group that it is kept for."""

    running: list[WorkItem] = field(default_factory=list)
    lone: Slot | None = None
    kept: _Group | None = None
    last_alone: bool = False  # whether the item that began last has it alone, or had


class Plan:
    """The items that are left, and what runs. `next` gives a slot its item, `end` takes it back."""

    def __init__(self, items: Iterable[WorkItem]) -> None:
        self._queues: dict[_Kind, list[_Group]] = defaultdict(list)  # of groups without an owner
        self._owned: dict[str, _Group] = {}  # by slot
        self._named: dict[_Key, _Group] = {}  # those that later items may join
        self._open: dict[str, WorkItem] = {}  # those that have not ended
        self._gpus: dict[str, _Gpu] = defaultdict(_Gpu)  # on "", of slots without, nothing runs
        self._running: dict[str, WorkItem] = {}  # by slot
        self._number = 0  # of groups so far
        self.add(items)

    @property
    def left(self) -> int:
        """How many items have not ended."""
        return len(self._open)

    def add(self, items: Iterable[WorkItem]) -> None:
        """More items; those of a group that is there already come behind its others."""
        groups: dict[_Key, list[WorkItem]] = defaultdict(list)
        for item in items:
            if item.id in self._open:
                raise ValueError(f"expected each item once, got {item.id} again")
            self._open[item.id] = item
            groups[_kind(item), item.rank, item.group or f"\0{item.id}"].append(item)
        for key, found in groups.items():
            if (group := self._named.get(key)) and group.items:
                group.items.extend(found)
                continue
            made = self._queue(found, found[0].rank)
            if found[0].group:
                self._named[key] = made

    def _queue(self, items: list[WorkItem], rank: int) -> _Group:
        """A new group."""
        self._number += 1
        made = _Group((rank, -sum(item.seconds for item in items), self._number), deque(items))
        insort(self._queues[_kind(items[0])], made)
        return made

    def next(self, slot: Slot) -> WorkItem | None:
        """The item that a slot begins now, None if there is none for it now; `waits_for` says why."""
        gpu = self._gpus[slot.gpu]
        if slot.alone:
            gpu.lone = slot
        if gpu.running and (slot.alone or gpu.last_alone):
            return None
        own, kept = self._owned.get(slot.id), gpu.kept
        if kept and not kept.owner and not slot.alone:
            group = kept if _fits(kept.items[0], slot, gpu) else None
        else:
            group = own = own if own and _fits(own.items[0], slot, gpu) else None
            if not (own and own.items[0].together):
                group = self._unowned(slot, gpu, own) or own or self._longest(slot, gpu)
        if group is None or (not slot.alone and self._is_for_lone(gpu, group)):
            return None
        if not group.owner:
            self._take(group, slot, gpu)
        item = group.items.popleft() if group.owner == slot.id else group.items.pop()
        if not group.items:
            del self._owned[group.owner]
        self._running[slot.id] = item
        if item.gpus:
            gpu.running.append(item)
            gpu.last_alone = item.alone
        return item

    def _queues_of(self, slot: Slot) -> list[list[_Group]]:
        """Those of the kinds that a slot admits."""
        return [queue for queue in self._queues.values() if queue and slot.admits(queue[-1].items[0])]

    def _unowned(self, slot: Slot, gpu: _Gpu, own: _Group | None) -> _Group | None:
        """The first group without an owner whose first item fits; if the slot has its own, only of a lower rank."""
        firsts = (
            next((group for group in queue[: -AHEAD - 1 : -1] if _fits(group.items[0], slot, gpu)), None)
            for queue in self._queues_of(slot)
        )
        found = max((group for group in firsts if group), default=None)
        return found if found and not (own and found.order[0] >= own.order[0]) else None

    def _take(self, group: _Group, slot: Slot, gpu: _Gpu) -> None:
        """Make the slot the owner of a group; what it has goes back to the others."""
        queue = self._queues[_kind(group.items[0])]
        place = bisect_left(queue, group)
        for passed in queue[place + 1 :]:
            passed.passed += 1
            if passed.passed % PATIENCE == 0:
                gpu.kept = passed
        del queue[place]
        self._release(slot)
        group.owner, self._owned[slot.id] = slot.id, group

    def _release(self, slot: Slot) -> None:
        """Others may take what a slot owns."""
        if group := self._owned.pop(slot.id, None):
            group.owner = ""
            insort(self._queues[_kind(group.items[0])], group)

    def _is_for_lone(self, gpu: _Gpu, group: _Group) -> bool:
        """Whether the GPU is left to an item that needs it alone, and not to a group."""
        if gpu.lone is None:
            return False
        firsts = [queue[-1] for queue in self._queues_of(gpu.lone)]
        firsts += [self._owned[gpu.lone.id]] if gpu.lone.id in self._owned else []
        return bool(firsts) and (gpu.last_alone or max(firsts).order < group.order)

    def _longest(self, slot: Slot, gpu: _Gpu) -> _Group | None:
        """The group of another slot with most left, whose last item this one may take."""
        others = (g for g in self._owned.values() if not g.items[-1].together)
        found = (g for g in others if slot.admits(g.items[-1]) and _fits(g.items[-1], slot, gpu))
        return max(found, key=lambda group: sum(item.seconds for item in group.items), default=None)

    def end(self, slot: Slot) -> WorkItem:
        """The slot has ended its item."""
        item = self._running.pop(slot.id)
        if item.gpus:
            self._gpus[slot.gpu].running.remove(item)
        return self._open.pop(item.id)

    def again(self, item: WorkItem) -> None:
        """One that has ended comes before all others."""
        self._open[item.id] = item
        self._queue([item], min(-1, item.rank))

    def drop(self, slot: Slot) -> None:
        """A slot is gone."""
        if (gpu := self._gpus[slot.gpu]).lone == slot:
            gpu.lone = None
        self._release(slot)

    def rest(self) -> list[WorkItem]:
        """The items that have not begun."""
        begun = {item.id for item in self._running.values()}
        return [item for item in self._open.values() if item.id not in begun]

    def waits_for(self, slot: Slot) -> str:
        """What a slot that got no item waits for."""
        gpu = self._gpus[slot.gpu]
        if queues := self._queues_of(slot):
            alone = slot.alone or (gpu.running and gpu.last_alone)
            return OTHERS if alone or any(_fits(queue[-1].items[0], slot, gpu) for queue in queues) else MEMORY
        return COMPILERS if slot.alone and not all(item.alone for item in self._open.values()) else NOTHING


def _kind(item: WorkItem) -> _Kind:
    return item.gpus, item.cpu, item.alone, item.card


def _fits(item: WorkItem, slot: Slot, gpu: _Gpu) -> bool:
    """Whether its memory is free; an item that runs beside nothing always fits."""
    return not gpu.running or not slot.memory or sum(one.memory for one in (item, *gpu.running)) <= slot.memory
