"""Items of one variant run in one worker process, where there are variants enough for all of them."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from kernelmux.conformance import check as catalogue
from kernelmux.conformance import spread
from kernelmux.conformance.plan import Item

CHECKS = ("accuracy", "exact", "layout", "memory")
LABELS = (("cuda", "tiled"), ("triton", "tiled"), ("triton", "simple"))


def items(*ops: str) -> dict[str, Item]:
    made = [Item(op, backend, variant, check) for op in ops for backend, variant in LABELS for check in CHECKS]
    return {item.id: item for item in made}


class Worker:
    """What the scheduler sees of a process: it counts what it is sent."""

    def __init__(self, ids: list[str]) -> None:
        self.gateway = SimpleNamespace(spec="popen", id="gw")
        self.shutting_down, self.ids, self.sent = False, ids, list[str]()

    def send_runtest_some(self, indices: list[int]) -> None:
        self.sent += [self.ids[i] for i in indices]

    def shutdown(self) -> None:
        self.shutting_down = True


def shared_out(plan: dict[str, Item]) -> list[list[str]]:
    """The items that each of two workers runs, the first one always being the faster."""
    config: Any = SimpleNamespace(option=SimpleNamespace(), getvalue=lambda name: ["2*popen"])
    scheduler = spread.ByVariant(config, None, plan)
    ids = [f"plan.json::{name}" for name in plan]
    workers = [Worker(ids), Worker(ids)]
    for worker in workers:
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, ids)
    scheduler.schedule()
    done = 0
    while done < len(workers[0].sent):
        scheduler.mark_test_complete(workers[0], ids.index(workers[0].sent[done]))
        done += 1
    return [worker.sent for worker in workers]


def test_the_items_of_a_variant_stay_together_in_the_order_of_the_plan() -> None:
    plan = items("add", "gelu")
    fast, slow = shared_out(plan)
    assert sorted(fast + slow) == sorted(f"plan.json::{name}" for name in plan)
    for ids in (fast, slow):
        groups = [spread.group(plan[name.partition("::")[2]]) for name in ids]
        assert len(dict.fromkeys(groups)) * len(CHECKS) == len(ids)
        assert groups == sorted(groups, key=list(dict.fromkeys(groups)).index)
        assert [plan[name.partition("::")[2]].check for name in ids[: len(CHECKS)]] == list(CHECKS)
    assert len(fast) > len(slow)


def test_a_few_variants_are_not_worth_keeping_together() -> None:
    few, many = items("add"), items(*(f"op{n}" for n in range(spread.ENOUGH)))
    assert not spread.pays(few, 2) and spread.pays(many, 2) and not spread.pays(many, 64)


def test_on_gpus_neighbours_are_of_different_variants_and_checks() -> None:
    """As many processes as there are variants begin with one each, and few at a time are at the same check."""
    plan = list(items("add", "gelu").values())
    order = spread.mixed(plan)
    assert sorted(i.id for i in order) == sorted(i.id for i in plan)
    variants = len({spread.group(i) for i in plan})
    for start in range(0, len(order), variants):
        row = order[start : start + variants]
        assert len({spread.group(i) for i in row}) == variants
        assert max(Counter(i.check for i in row).values()) <= -(-variants // len(CHECKS))


def test_on_gpus_what_takes_a_moment_comes_last() -> None:
    found = [Item("add", "cuda", "tiled", check) for check in ("accuracy", "claims", "exact", "signature", "state")]
    order = [i.check for i in spread.mixed(found)]
    assert set(order[:3]) == {"accuracy", "exact", "state"} and set(order[3:]) == {"claims", "signature"}
    assert spread.QUICK <= set(catalogue.names())
