"""Items of one variant run in one worker process, where there are variants enough for all of them."""

from __future__ import annotations

from itertools import groupby
from types import SimpleNamespace
from typing import Any

import pytest

from kernelmux.conformance import check as catalogue
from kernelmux.conformance.session import scheduling
from kernelmux.conformance.session.plan import Item
from kernelmux.conformance.session.xdist_schedulers import ByVariant, LongestFirst

CHECKS = ("accuracy", "exact", "layout", "memory")
LABELS = (("cuda", "tiled"), ("triton", "tiled"), ("triton", "simple"))


def items(*ops: str) -> dict[str, Item]:
    made = [Item(op, backend, variant, check) for op in ops for backend, variant in LABELS for check in CHECKS]
    return {item.id: item for item in made}


CONFIG: Any = SimpleNamespace(option=SimpleNamespace(), getvalue=lambda name: ["2*popen"], getoption=lambda name: 1)


class Worker:
    """What the scheduler sees of a process: it counts what it is sent."""

    def __init__(self, ids: list[str]) -> None:
        self.gateway = SimpleNamespace(spec="popen", id="gw")
        self.shutting_down, self.ids, self.sent = False, ids, list[str]()

    def send_runtest_some(self, indices: list[int]) -> None:
        self.sent += [self.ids[i] for i in indices]

    def shutdown(self) -> None:
        self.shutting_down = True


def started(plan: dict[str, Item], scheduler: Any) -> list[Worker]:
    """Two workers that have been given their first items."""
    ids = [f"plan.json::{name}" for name in plan]
    workers = [Worker(ids), Worker(ids)]
    for worker in workers:
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, ids)
    scheduler.schedule()
    return workers


def shared_out(plan: dict[str, Item]) -> list[list[str]]:
    """The items that each of two workers runs, the first one always being the faster."""
    scheduler = ByVariant(CONFIG, None, plan)
    workers = started(plan, scheduler)
    done = 0
    while done < len(workers[0].sent):
        scheduler.mark_test_complete(workers[0], workers[0].ids.index(workers[0].sent[done]))
        done += 1
    return [worker.sent for worker in workers]


def test_the_items_of_a_variant_stay_together_in_the_order_of_the_plan() -> None:
    plan = items("add", "gelu")
    fast, slow = shared_out(plan)
    assert sorted(fast + slow) == sorted(f"plan.json::{name}" for name in plan)
    for ids in (fast, slow):
        groups = [scheduling.group(plan[name.partition("::")[2]]) for name in ids]
        assert len(dict.fromkeys(groups)) * len(CHECKS) == len(ids)
        assert groups == sorted(groups, key=list(dict.fromkeys(groups)).index)
        assert [plan[name.partition("::")[2]].check for name in ids[: len(CHECKS)]] == list(CHECKS)
    assert len(fast) > len(slow)


def test_a_few_variants_are_not_worth_keeping_together() -> None:
    few, many = items("add"), items(*(f"op{n}" for n in range(scheduling.ENOUGH)))
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


def test_on_gpus_no_long_item_waits_behind_a_long_one() -> None:
    """Eight items in the order of the plan, of which the first four are long."""
    plan = {i.id: i for i in (Item("add", "cuda", "tiled", f"check{n}") for n in range(8))}
    seconds = {name: 60.0 if n < 4 else 0.1 for n, name in enumerate(plan)}
    scheduler = LongestFirst(CONFIG, None, seconds)
    workers = started(plan, scheduler)
    names = list(plan)

    def sent() -> list[list[int]]:
        return [[names.index(i.partition("::")[2]) for i in worker.sent] for worker in workers]

    assert sent() == [[0, 7], [1, 6]]
    scheduler.mark_test_complete(workers[0], 0)
    assert sent() == [[0, 7, 2], [1, 6]]  # the short one runs now, and a long one is next
    scheduler.mark_test_complete(workers[0], 7)
    assert sent() == [[0, 7, 2, 5], [1, 6]]
    for index in (2, 5):
        scheduler.mark_test_complete(workers[0], index)
    assert sent() == [[0, 7, 2, 5, 3, 4], [1, 6]]
    scheduler.mark_test_complete(workers[0], 3)
    assert [worker.shutting_down for worker in workers] == [True, False]
