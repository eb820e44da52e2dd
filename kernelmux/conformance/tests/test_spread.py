"""In which order workers get items: those of one variant in one process, where there are variants enough for all."""

from __future__ import annotations

from itertools import groupby

import pytest

from kernelmux.conformance import check as catalogue
from kernelmux.conformance.cli.suite import planned
from kernelmux.conformance.options import Options
from kernelmux.conformance.session import scheduling, time_budget
from kernelmux.conformance.session.plan import Item
from kernelmux.conformance.session.plan import items as session_items
from kernelmux.runner.item import Slot
from kernelmux.runner.plan import Plan

CHECKS = ("accuracy", "exact", "layout", "memory")
OPS = ("add", "softmax", "matmul", "rms_norm")
LABELS = (("cuda", "tiled"), ("triton", "tiled"), ("triton", "simple"))


def items(*ops: str) -> dict[str, Item]:
    made = [Item(op, backend, variant, check) for op in ops for backend, variant in LABELS for check in CHECKS]
    return {item.id: item for item in made}


def given_out(plan: Plan, slots: list[Slot]) -> list[list[str]]:
    """The items that each of these workers gets, the first one always being the faster: it ends three before others one."""
    taken: list[list[str]] = [[] for _ in slots]
    for slot, names in zip(slots, taken, strict=True):
        if slot.id not in plan._running:
            names += [item.id] if (item := plan.next(slot)) else []
    while plan.left:
        for number, slot in enumerate(slots):
            for _ in range(1 if number else 3):
                if slot.id in plan._running:
                    plan.end(slot)
                    taken[number] += [item.id] if (item := plan.next(slot)) else []
    return taken


def test_the_items_of_a_variant_stay_together_in_the_order_of_the_plan() -> None:
    every = items(*(f"op{n}" for n in range(scheduling.ENOUGH)))
    made, _ = planned(Options(), list(every.values()), {}, 2)
    fast, slow = given_out(Plan(made), [Slot("a"), Slot("b")])
    assert sorted(fast + slow) == sorted(every) and len(fast) > len(slow)
    for ids in (fast, slow):
        groups = [scheduling.group(every[name]) for name in ids]
        assert groups == sorted(groups, key=list(dict.fromkeys(groups)).index)
        assert [every[name].check for name in ids[: len(CHECKS)]] == list(CHECKS)
    assert len(set(fast) & set(slow)) == 0


def test_a_worker_that_is_given_an_item_once_more_still_has_its_variant_after_it() -> None:
    every = items(*(f"op{n}" for n in range(scheduling.ENOUGH)))
    made, _ = planned(Options(), list(every.values()), {}, 2)
    plan, first, second = Plan(made), Slot("a"), Slot("b")
    own, other = plan.next(first), plan.next(second)
    assert own and other and own.group != other.group
    plan.again(plan.end(second))
    plan.end(first)
    assert plan.next(first) == other, "it comes before all others"
    assert sorted(name for names in given_out(plan, [first, second]) for name in names) == sorted(
        every.keys() - {own.id, other.id}
    )


def test_one_worker_runs_the_items_in_the_order_of_the_plan() -> None:
    every = items(*(f"op{n}" for n in range(2 * scheduling.ENOUGH)))
    (taken,) = given_out(Plan(planned(Options(), list(every.values()), {}, 1)[0]), [Slot("a")])
    assert taken == list(every)
    known = {name: float(place) for place, name in enumerate(every)}
    (taken,) = given_out(Plan(planned(Options(), list(every.values()), known, 1)[0]), [Slot("a")])
    assert taken == list(reversed(every))


def test_on_gpus_workers_take_items_in_the_order_of_the_plan() -> None:
    every = items("add", "gelu")
    order = [item.id for item in scheduling.ordered(every.values(), {}, "cuda")]
    made, required = planned(Options(device="cuda"), list(every.values()), {}, 2)
    fast, slow = given_out(Plan(made), [Slot("a"), Slot("b")])
    assert [i.id for i in made] == order and sorted(fast + slow) == sorted(order) and required == -1
    assert all(ids == sorted(ids, key=order.index) for ids in (fast, slow))


def test_what_is_asked_in_any_case_begins_before_all_others() -> None:
    every = [i for i in session_items(Options(ops=OPS)) if i.backend in ("torch_ref", "cuda", "spec")]
    chosen = Options(ops=OPS, minutes=1.0)
    made, required = planned(chosen, every, {}, 2)
    asked = time_budget.required(every, {})
    assert {i.id for i in made if i.rank <= required} == asked == {i.id for i in made if i.work["required"]}
    fast, slow = given_out(Plan(made), [Slot("a"), Slot("b")])
    for ids in (fast, slow):
        kinds = [name in asked for name in ids]
        assert kinds == sorted(kinds, reverse=True) and any(kinds)


def test_a_few_variants_are_not_worth_keeping_together() -> None:
    few, many = items("add").values(), items(*(f"op{n}" for n in range(scheduling.ENOUGH))).values()
    assert not scheduling.pays(few, 2) and scheduling.pays(many, 2) and not scheduling.pays(many, 64)


def test_on_gpus_neighbours_are_of_different_variants() -> None:
    """Of what takes equally long, each variant comes once before one comes again."""
    plan = list(items("add", "gelu").values())
    order = scheduling.mixed(plan, {})
    assert sorted(i.id for i in order) == sorted(i.id for i in plan)
    for _, alike in groupby(order, lambda item: scheduling.expected(item, {})):
        found = list(alike)
        variants = len({scheduling.group(i) for i in found})
        for start in range(0, len(found), variants):
            row = found[start : start + variants]
            assert len({scheduling.group(i) for i in row}) == len(row)


def test_what_goes_on_record_is_asked_in_parts_of_whole_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "PART", 2)
    names = ("add", "gelu", "silu", "softmax", "rope")
    parts = scheduling.parts([Item(op, "cuda", "tiled", check) for op in names for check in ("claims", "exact")])
    assert [sorted({item.op for item in part}) for part in parts] == [["add", "gelu"], ["silu", "softmax"], ["rope"]]
    assert all(len(part) == 2 * len({item.op for item in part}) for part in parts) and scheduling.parts([]) == [[]]


def test_on_gpus_what_takes_longest_comes_first() -> None:
    checks = ("claims", "accuracy", "exact", "signature")
    found = [Item("add", backend, "tiled", check) for backend in ("cuda", "triton") for check in checks]
    order = [(i.backend, i.check) for i in scheduling.mixed(found, {})]
    assert order[:3] == [("triton", "accuracy"), ("cuda", "accuracy"), ("triton", "exact")]
    assert {check for _, check in order[-4:]} == {"claims", "signature"}
    known = {i.id: 100.0 for i in found if i.check == "claims"}
    assert {i.check for i in scheduling.mixed(found, known)[:2]} == {"claims"}
    assert set(scheduling.SECONDS) <= set(catalogue.names()) >= scheduling.ALONE


def test_on_gpus_what_needs_one_for_itself_is_spread_over_the_run() -> None:
    found = [Item(f"op{n}", "cuda", "tiled", check) for n in range(4) for check in ("accuracy", "exact", "offsets")]
    order = [i.check for i in scheduling.mixed(found, {})]
    assert [n for n, check in enumerate(order) if check == "offsets"] == [1, 4, 6, 9]
