"""How many worker processes a run gets, and what its items need of GPUs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kernelmux.conformance.cli import run
from kernelmux.conformance.cli.run import Ways
from kernelmux.conformance.cli.suite import planned
from kernelmux.conformance.options import Options
from kernelmux.conformance.session import scheduling
from kernelmux.conformance.session.plan import Item

GIB = 2**30
CUDA = Options(device="cuda")
DEVICES, EXACT, OFFSETS = (Item("add", "cuda", "tiled", check) for check in ("devices", "exact", "offsets"))


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Four GPUs of 80 GiB in a machine of 64 cores."""
    found = [SimpleNamespace(memory=80 * GIB) for _ in range(4)]
    monkeypatch.setattr(run.machine, "available_cores", lambda: 64)
    monkeypatch.setattr(run.machine, "visible_gpus", lambda: found)
    return found


def test_more_gpus_get_more_workers(four: list[Any]) -> None:
    auto = Ways("auto")
    assert run._workers(auto, 5000, CUDA) == 4 * run.SHARE_GPU == 64
    assert run._workers(auto, 5 * run.PER_PROCESS, CUDA) == 4 * 5 and run._workers(Ways("3"), 5000, CUDA) == 3
    four[0].memory = 10 * GIB
    assert run._workers(auto, 5000, CUDA) == 4 * 4


def test_few_items_are_done_by_one_process(four: list[Any]) -> None:
    assert run._workers(Ways(), run.PARALLEL_FROM - 1, Options()) == 1
    assert run._workers(Ways(), run.PARALLEL_FROM, Options()) == run._workers(Ways("auto"), 1, Options()) == 64


def test_all_gpus_are_shared_and_a_node_of_a_cluster_uses_what_it_has() -> None:
    assert run._processes(CUDA, Ways(), 64).gpu == run.SHARE_BYTES and run._processes(CUDA, Ways(), 64).most == 64
    assert run._processes(CUDA, Ways(cluster="auto"), 64).most is None
    assert run._processes(CUDA, Ways("8", cluster="auto"), 64).most == 8
    assert run._processes(Options(), Ways(), 3).cpu and not run._processes(Options(), Ways(), 3).gpu


def test_an_item_that_asks_about_a_second_gpu_gets_one_where_there_is_one() -> None:
    for count, needed in ((4, [2, 1, 1]), (1, [1, 1, 1]), (0, [0, 0, 0])):
        made, _ = planned(CUDA, [DEVICES, EXACT, OFFSETS], {}, 2, count)
        assert {item.id: item.gpus for item in made} == dict(
            zip((DEVICES.id, EXACT.id, OFFSETS.id), needed, strict=True)
        )


def test_two_items_that_take_gigabytes_do_not_meet_on_a_gpu(four: list[Any]) -> None:
    sharers, count, room = run._shared(Ways(), 64)
    assert (sharers, count, room) == (16, 4, 80 * GIB) and run._shared(Ways(cluster="auto"), 64) == (16, 1, 0)
    made, _ = planned(CUDA, [EXACT, OFFSETS], {}, 2, count, room)
    memory = {item.id: item.memory for item in made}
    assert not memory[EXACT.id] and 2 * memory[OFFSETS.id] > 80 * GIB > memory[OFFSETS.id]


def test_the_limit_of_an_item_is_far_beyond_what_it_takes() -> None:
    made, _ = planned(Options(tier="full"), [EXACT, OFFSETS], {OFFSETS.id: 1000.0}, 2)
    limits = {item.id: item.limit for item in made}
    assert limits == {EXACT.id: scheduling.LIMITS["full"], OFFSETS.id: 1000 * scheduling.TIMES}
