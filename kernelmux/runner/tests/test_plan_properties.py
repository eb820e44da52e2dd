"""What holds for every plan: random items and slots, run in simulated time."""

import heapq

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelmux.runner import plan as plans
from kernelmux.runner.item import Slot, WorkItem
from kernelmux.runner.plan import Plan

CARDS = ("", "", "", "nvidia_h200", "nvidia_l4")


@st.composite
def slots(draw):
    """Of each GPU some that share it and one for items that need it alone; some without."""
    made = [Slot(f"cpu{i}", card=draw(st.sampled_from(CARDS))) for i in range(draw(st.integers(0, 2)))]
    for gpu in range(draw(st.integers(0, 2))):
        seen, card = (str(gpu), str(1 - gpu))[: draw(st.integers(1, 2))], draw(st.sampled_from(CARDS))
        for i in range(draw(st.integers(1, 3))):
            made.append(Slot(f"gpu{gpu}-{i}", "", seen, card, memory=100))
        made.append(Slot(f"alone{gpu}", "", seen, card, alone=True, memory=100))
    return made or [Slot("cpu")]


@st.composite
def items(draw):
    made = []
    for i in range(draw(st.integers(1, 30))):
        gpus = draw(st.integers(0, 2))
        made.append(
            WorkItem(
                f"i{i}",
                seconds=draw(st.sampled_from([0.0, 1.0, 2.0, 5.0])),
                rank=draw(st.integers(0, 2)),
                group=draw(st.sampled_from(["", "", "a", "b", "c"])),
                gpus=gpus,
                cpu=not gpus and draw(st.booleans()) and draw(st.booleans()),
                alone=gpus > 0 and draw(st.booleans()) and draw(st.booleans()),
                memory=draw(st.sampled_from([0, 10, 40, 60, 90, 150])) if gpus else 0,
                card=draw(st.sampled_from(CARDS)),
            )
        )
    return draw(st.permutations(made))


class Simulated:
    """A plan whose items take their seconds, or end some other way; `check` looks at what runs."""

    def __init__(self, every, chosen, fates):
        self.every, self.slots, self.fates = {item.id: item for item in every}, {s.id: s for s in chosen}, fates
        half = len(every) // 2
        self.plan, self.ended, self.running = Plan(every[:half]), [], {}
        self.plan.add(every[half:])

    def go(self):
        """Run until nothing can begin; the ids that have ended."""
        now = 0.0
        heap: list[tuple[float, str]] = []
        while True:
            begun = True
            while begun:
                begun = False
                for slot in self.slots.values():
                    if slot.id not in self.running and (item := self.plan.next(slot)) is not None:
                        begun = True
                        self.running[slot.id] = item
                        heapq.heappush(heap, (now + item.seconds, slot.id))
                        self.check(item, slot)
            if not heap:
                return self.ended
            now, name = heapq.heappop(heap)
            self._end(self.slots[name], self.running.pop(name))

    def _end(self, slot, item):
        fate = self.fates.pop() if self.fates else "ends"
        assert self.plan.end(slot) == item
        if fate != "ends":
            self.plan.again(item)
            if fate == "drops" and len(self.slots) > 1:
                self.plan.drop(self.slots.pop(slot.id))
            return
        self.ended.append(item.id)

    def check(self, item, slot):
        assert slot.admits(item)
        if slot.gpu:
            beside = [i for name, i in self.running.items() if self.slots[name].gpu == slot.gpu and i.gpus]
            assert len(beside) <= 1 or not any(i.alone for i in beside)
            assert len(beside) <= 1 or sum(i.memory for i in beside) <= slot.memory


def possible(every, chosen):
    """The items that the slots can run."""
    return {item.id for item in every if any(slot.admits(item) for slot in chosen)}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(items(), slots(), st.integers(1, 3), st.integers(1, 4))
def test_every_item_runs_once(every, chosen, patience, ahead):
    before, plans.PATIENCE, plans.AHEAD = (plans.PATIENCE, plans.AHEAD), patience, ahead
    try:
        run = Simulated(every, chosen, [])
        ended = run.go()
    finally:
        plans.PATIENCE, plans.AHEAD = before
    assert len(ended) == len(set(ended))
    assert set(ended) == possible(every, chosen)
    assert run.plan.left == len(every) - len(ended)
    rest = run.plan.rest()
    assert {item.id for item in rest} == {item.id for item in every} - set(ended)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(items(), slots(), st.lists(st.sampled_from(["ends", "again", "again", "drops"]), max_size=20))
def test_items_that_are_tried_again_and_slots_that_go(every, chosen, fates):
    run = Simulated(every, chosen, fates)
    ended = run.go()
    assert len(ended) == len(set(ended))
    assert set(ended) >= possible(every, run.slots.values())
    assert len(ended) + len(run.plan.rest()) == len(every)


@settings(max_examples=50, deadline=None)
@given(items())
def test_of_one_worker_ranks_are_in_order(every):
    free = [WorkItem(i.id, seconds=i.seconds, rank=i.rank, group=i.group) for i in every]
    ended = Simulated(free, [Slot("cpu")], []).go()
    ranks = [next(i.rank for i in free if i.id == name) for name in ended]
    assert ranks == sorted(ranks)
