"""A verdict of two judges: what one would have said, whatever becomes of the second."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from kernelmux.candidate import limits
from kernelmux.candidate.pool import WarmPool
from kernelmux.conformance.session.execute import Outcome
from kernelmux.judge.second_judge import SecondJudge
from kernelmux.judge.shared_items import SharedItems
from kernelmux.judge.verdict import KernelVerdict, verdict

RIGHT = "import torch\n\ndef add(x, y):\n    return torch.add(x, y).contiguous()\n"
WRONG = RIGHT.replace("torch.add(x, y)", "((x + y) * 1.01)")
SEED = 7
ENDS, STARTS = 30.0, 120.0  # seconds until what was killed is gone, and until another has begun an item


@pytest.fixture(scope="module")
def second() -> Iterator[SecondJudge]:
    with SecondJudge() as made:
        assert made.wait()
        yield made


@pytest.fixture(scope="module")
def pool() -> Iterator[WarmPool]:
    with WarmPool() as made:
        yield made


@pytest.fixture
def both_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first judge, which may be through before a busy machine has started a candidate for the second, waits until that
    has an item, or has none to come."""
    taken, first, last = threading.Event(), SharedItems.first, SharedItems.last

    def later(share: SharedItems) -> object:
        while share._thread and share._thread.is_alive() and not taken.wait(0.1):
            pass
        return first(share)

    def noted(share: SharedItems) -> object:
        item = last(share)
        taken.set()
        return item

    monkeypatch.setattr(SharedItems, "first", later)
    monkeypatch.setattr(SharedItems, "last", noted)


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The places of the items that the second judge has ended."""
    found, add = list[int](), SharedItems.add

    def noted(share: SharedItems, place: int, outcomes: Sequence[Outcome]) -> None:
        found.append(place)
        add(share, place, outcomes)

    monkeypatch.setattr(SharedItems, "add", noted)
    return found


def statuses(made: KernelVerdict) -> list[tuple[str, str, int]]:
    """Each item, how it ended and how many trials passed."""
    return [(item["check"], item["status"], item["trials"]["passed"]) for item in made.items]


@pytest.mark.usefixtures("both_take")
def test_two_judges_say_what_one_says(second: SecondJudge, pool: WarmPool, places: list[int]) -> None:
    alone = verdict(RIGHT, "add", allow=("torch",), seed=SEED, pool=pool)
    both = verdict(RIGHT, "add", allow=("torch",), seed=SEED, second=second, pool=pool)
    assert both.good and both.uses == alone.uses and statuses(both) == statuses(alone)
    assert 0 < len(places) < len(both.items)
    assert not verdict(WRONG, "add", allow=("torch",), second=second, pool=pool).passed
    refused = verdict(WRONG, "add", allow=("torch",), second=second, pool=pool, at_once=True)
    assert not refused.whole and len(refused.items) < len(both.items)


def test_one_item_and_no_function_at_all(second: SecondJudge, pool: WarmPool) -> None:
    for _ in range(2):  # either may be first at the one item
        made = verdict(RIGHT, "add", checks=("accuracy",), allow=("torch",), second=second, pool=pool)
        assert made.good and [item["check"] for item in made.items] == ["accuracy"]
    missing = verdict("def mine(x, y):\n    return x + y\n", "add", second=second, pool=pool)
    assert [item["check"] for item in missing.items] == ["import"]
    assert verdict(RIGHT, "add", checks=("accuracy",), allow=("torch",), second=second, pool=pool).good


@pytest.mark.usefixtures("both_take")
def test_what_it_leaves_is_asked_by_the_first_and_another_takes_its_place(
    second: SecondJudge, pool: WarmPool, places: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, killed = SharedItems.last, list[int]()

    def last(share: SharedItems) -> object:
        """The first item that it takes is its last: it is killed while it has that."""
        item = asked(share)
        if item and not killed and _children():
            killed.extend(_children())
            for process in killed:
                os.kill(process, signal.SIGKILL)
        return item

    monkeypatch.setattr(SharedItems, "last", last)
    assert second.wait()
    made = verdict(RIGHT, "add", allow=("torch",), seed=SEED, second=second, pool=pool)
    assert (
        killed
        and made.good
        and statuses(made) == statuses(verdict(RIGHT, "add", allow=("torch",), seed=SEED, pool=pool))
    )
    end = time.monotonic() + STARTS
    while not places and time.monotonic() < end:  # no verdict waits for the next one
        assert verdict(RIGHT, "add", allow=("torch",), seed=SEED, second=second, pool=pool).good
    assert places


def test_nothing_of_it_is_left(pool: WarmPool) -> None:
    others = _children()
    with SecondJudge() as second:
        assert second.wait()
        assert verdict(RIGHT, "add", checks=("accuracy",), allow=("torch",), second=second, pool=pool).good
        found = [path for process in set(_children()) - set(others) for path in limits.family(process)]
        assert len(found) > 1  # its own and those that wait in it
    end = time.monotonic() + ENDS
    while any(_lives(path) for path in found) and time.monotonic() < end:
        time.sleep(0.1)
    assert not [path for path in found if _lives(path)]


def _children() -> list[int]:
    """The processes of this one that serve as second judges."""
    found = list[int]()
    for path in limits.family(os.getpid()):
        with suppress(OSError):  # one that has just ended
            if b"runner/worker.py" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
    return found


def _lives(path: Path) -> bool:
    try:
        return (path / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_verdict_of_one_judge_needs_neither_pytest_nor_execnet() -> None:
    text = "import sys, kernelmux.judge.cli; print({'pytest', 'execnet'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
