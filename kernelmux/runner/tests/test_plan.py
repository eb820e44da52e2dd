"""Which item a slot begins: the plan alone, without processes."""

import pytest

from kernelmux.runner import plan as plans
from kernelmux.runner.item import Slot, WorkItem
from kernelmux.runner.plan import COMPILERS, MEMORY, NOTHING, OTHERS, Plan


def slots(number, **details):
    return [Slot(f"s{i}", "node", **details) for i in range(number)]


def taken(plan, slot):
    """The ids that one slot runs to the end, in their order."""
    found = []
    while (item := plan.next(slot)) is not None:
        found.append(item.id)
        plan.end(slot)
    return found


def test_the_longest_begin_first_within_a_rank():
    plan = Plan([WorkItem("short", seconds=1), WorkItem("long", seconds=9), WorkItem("first", seconds=2, rank=-1)])
    assert taken(plan, *slots(1)) == ["first", "long", "short"]
    assert plan.left == 0


def test_as_long_ones_begin_in_their_order():
    assert taken(Plan([WorkItem(name) for name in "abcd"]), *slots(1)) == list("abcd")


def test_a_group_stays_with_its_worker():
    plan = Plan([WorkItem(f"{g}{i}", group=g) for i in range(3) for g in "ab"])
    one, two = slots(2)
    found: dict[str, list[str]] = {one.id: [], two.id: []}
    for _ in range(3):
        for slot in (one, two):
            found[slot.id].append(plan.next(slot).id)
        plan.end(one), plan.end(two)
    assert found == {"s0": ["a0", "a1", "a2"], "s1": ["b0", "b1", "b2"]}


def test_without_other_groups_the_end_of_the_longest_is_taken():
    plan = Plan([WorkItem(f"a{i}", group="a") for i in range(5)] + [WorkItem(f"b{i}", group="b") for i in range(4)])
    one, two, three = slots(3)
    assert [plan.next(one).id, plan.next(two).id, plan.next(three).id] == ["a0", "b0", "a4"]


def test_a_group_of_two_ranks_is_two():
    plan = Plan([WorkItem("late", group="g", rank=1), WorkItem("early", group="g", rank=0), WorkItem("other", rank=0)])
    assert taken(plan, *slots(1)) == ["early", "other", "late"]


def test_a_lower_rank_goes_before_the_slots_own_group():
    """What is left of the group is not lost."""
    plan = Plan([WorkItem(f"a{i}", group="a") for i in range(3)])
    one, two = slots(2)
    assert plan.next(one).id == "a0"
    assert plan.next(two).id == "a2"
    plan.again(plan.end(two))
    plan.end(one)
    assert taken(plan, one) == ["a2", "a1"]
    assert plan.left == 0


def test_who_times_waits_for_those_who_compile():
    plan = Plan([WorkItem("compile", gpus=1)])
    assert plan.next(ONE).id == "compile"
    assert [plan.next(ALONE), plan.waits_for(ALONE), plan.next(TWO), plan.waits_for(TWO)] == [
        None,
        COMPILERS,
        None,
        NOTHING,
    ]
    plan.add([WorkItem("time", gpus=1, alone=True)])
    plan.end(ONE)
    assert plan.next(ALONE).id == "time"
    assert plan.waits_for(ALONE_OTHER) == NOTHING


def test_again_comes_before_all_others():
    plan = Plan([WorkItem("a", seconds=1), WorkItem("b", seconds=9)])
    one, two = slots(2)
    plan.next(one), plan.next(two)
    plan.add([WorkItem("longer", seconds=99)])
    for slot in (one, two):
        plan.again(plan.end(slot))
    assert taken(plan, one) == ["b", "a", "longer"]


def test_drop_gives_back_what_the_slot_owned():
    plan = Plan([WorkItem(f"a{i}", group="a") for i in range(3)])
    one, two = slots(2)
    plan.next(one)
    plan.again(plan.end(one))
    plan.drop(one)
    assert taken(plan, two) == ["a0", "a1", "a2"]


def test_the_rest_is_everything_that_has_not_begun():
    plan = Plan(
        [
            WorkItem("a"),
            WorkItem("b"),
            *(WorkItem(f"g{i}", group="g") for i in range(2)),
        ]
    )
    one, two = slots(2)
    begun = {plan.next(one).id}
    rest = {item.id for item in plan.rest()}
    assert begun | rest == {"a", "b", "g0", "g1"}
    assert plan.left == 4
    assert plan.next(two).id in rest


def test_cards_and_gpus_are_respected():
    plan = Plan(
        [WorkItem("h200", card="nvidia_h200"), WorkItem("two", gpus=2), WorkItem("gpu", gpus=1), WorkItem("any")]
    )
    assert taken(plan, Slot("cpu")) == ["any"]
    assert taken(plan, Slot("one", gpus=("0",), card="nvidia_l4")) == ["gpu"]
    assert taken(plan, Slot("two", gpus=("0", "1"), card="nvidia_h200")) == ["h200", "two"]


def test_names_stand_once():
    with pytest.raises(ValueError, match="expected each item once, got a again"):
        Plan([WorkItem("a"), WorkItem("a")])


ONE, TWO = (Slot(f"shared{i}", gpus=("0",), memory=100) for i in range(2))
OTHER = Slot("other", gpus=("1",), memory=100)
ALONE, ALONE_OTHER = Slot("alone", gpus=("0",), alone=True, memory=100), Slot("alone1", gpus=("1",), alone=True)


def test_alone_keeps_others_away_from_its_gpu_only():
    plan = Plan([WorkItem("alone", gpus=1, alone=True, seconds=9), *(WorkItem(f"i{i}", gpus=1) for i in range(3))])
    assert plan.next(ALONE).id == "alone"
    assert plan.next(ONE) is None
    assert plan.waits_for(ONE) == OTHERS
    assert plan.next(OTHER).id == "i0"
    plan.end(ALONE)
    assert plan.next(ONE).id == "i1"


def test_alone_waits_until_nothing_runs_and_nothing_behind_it_begins():
    """Neither is it left to the end, nor does it wait for ever for a moment in which its GPU is free."""
    every = [WorkItem(f"i{i}", gpus=1, seconds=9 - i) for i in range(6)]
    plan = Plan(
        [*every, WorkItem("alone", gpus=1, alone=True, seconds=6.5), WorkItem("alone2", gpus=1, alone=True, seconds=1)]
    )
    assert [plan.next(ONE).id, plan.next(TWO).id] == ["i0", "i1"]
    assert plan.next(ALONE) is None
    assert plan.waits_for(ALONE) == OTHERS
    plan.end(ONE)
    assert plan.next(ONE).id == "i2"  # it is longer
    plan.end(ONE)
    assert plan.next(ONE) is None
    plan.end(TWO)
    assert [plan.next(TWO), plan.next(ALONE).id] == [None, "alone"]
    plan.end(ALONE)
    assert [plan.next(TWO), plan.next(ALONE).id] == [None, "alone2"]
    plan.end(ALONE)
    assert [plan.next(ALONE), plan.next(TWO).id] == [None, "i3"]


def test_a_slot_that_is_gone_keeps_nothing():
    plan = Plan([WorkItem("alone", gpus=1, alone=True, seconds=9), WorkItem("a", gpus=1), WorkItem("b", gpus=1)])
    assert plan.next(ONE).id == "a"
    assert plan.next(ALONE) is None
    plan.drop(ALONE)
    assert plan.next(TWO).id == "b"
    plan.end(ONE), plan.end(TWO)
    assert plan.next(ALONE_OTHER).id == "alone"


def test_what_does_not_fit_waits_and_smaller_ones_go_ahead():
    plan = Plan(
        [
            WorkItem("a", gpus=1, memory=60, seconds=9),
            WorkItem("b", gpus=1, memory=60, seconds=8),
            WorkItem("c", gpus=1),
        ]
    )
    assert [plan.next(ONE).id, plan.next(TWO).id] == ["a", "c"]
    plan.end(TWO)
    assert plan.next(TWO) is None
    assert plan.waits_for(TWO) == MEMORY
    assert plan.next(OTHER).id == "b"


def test_more_memory_than_there_is_runs_beside_nothing():
    plan = Plan([WorkItem("big", gpus=1, memory=500, seconds=9), WorkItem("small", gpus=1, memory=1)])
    assert plan.next(ONE).id == "big"
    assert plan.next(TWO) is None
    plan.end(ONE)
    assert plan.next(TWO).id == "small"


def test_the_own_group_does_not_hold_up_what_fits():
    plan = Plan(
        [WorkItem(f"g{i}", gpus=1, memory=60, seconds=9, group="g") for i in range(2)] + [WorkItem("c", gpus=1)]
    )
    assert plan.next(ONE).id == "g0"
    plan.end(ONE)
    plan._gpus[ONE.gpu].running.append(WorkItem("beside", gpus=1, memory=90))
    assert plan.next(ONE).id == "c"
    assert [item.id for item in plan.rest()] == ["g1"]


def test_who_steals_looks_at_the_item_that_is_taken():
    big, small = (WorkItem(n, gpus=1, group="g", memory=m) for n, m in (("big", 90), ("small", 10)))
    plan = Plan([WorkItem("first", gpus=1, group="g", memory=20), small, big])
    assert plan.next(ONE).id == "first"
    assert plan.next(TWO) is None  # the last, which it would take, is big


def test_a_big_item_is_passed_a_number_of_times(monkeypatch):
    """Then its GPU is kept for it; other GPUs go on."""
    monkeypatch.setattr(plans, "PATIENCE", 5)
    plan = Plan(
        [WorkItem("big", gpus=1, memory=90, seconds=5), *(WorkItem(f"i{i}", gpus=1, memory=20) for i in range(40))]
    )
    beside = WorkItem("beside", gpus=1, memory=20)
    plan._gpus[ONE.gpu].running.append(beside)
    begun = []
    while item := plan.next(ONE):
        begun.append(item.id)
        plan.end(ONE)
    assert len(begun) == 5
    plan._gpus[OTHER.gpu].running.append(beside)
    assert plan.next(OTHER).id == "i5"
    plan._gpus[ONE.gpu].running.clear()
    assert [plan.next(TWO).id, plan.next(ONE)] == ["big", None]
    plan.end(TWO)
    assert plan.next(ONE).id == "i6"
