"""Several calls in one message, and what goes on between calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelmux.candidate.calls_ahead import CallsAhead
from kernelmux.candidate.errors import CandidateError, CandidateOutOfMemory
from kernelmux.candidate.limits import Limits
from kernelmux.candidate.process import CandidateProcess

Open = Callable[[str], CandidateProcess]
X = torch.arange(12.0).view(3, 4)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens a candidate that consists of this text, under the name f."""
    made = []

    def opening(text: str) -> CandidateProcess:
        (tmp_path / "mine.py").write_text(f"import os, sys, time, torch\n{text}\n", encoding="utf-8")
        made.append(CandidateProcess(tmp_path / "mine.py", "f", "cpu"))
        return made[-1]

    yield opening
    for one in made:
        one.close()


def together(process: CandidateProcess, threads: bool) -> list[Any]:
    return process.calls([(X + turn,) for turn in range(4)], threads)


def test_calls_in_a_row_have_no_pause_between_them(opened: Open) -> None:
    soon = "last = [0.0, None]\ndef f(x):\n    y = last[1] if time.monotonic() - last[0] < 5e-4 else x + 1\n"
    process = opened(f"{soon}    last[:] = time.monotonic(), y\n    return y.clone()")
    assert all(torch.equal(process.call((X + turn,)), X + turn + 1) for turn in range(4))  # as each crosses
    assert sum(torch.equal(found, X + turn + 1) for turn, found in enumerate(together(process, threads=False))) < 4


@pytest.mark.parametrize("kept", ["types.SimpleNamespace()", "threading.local()"])
def test_calls_in_threads_are_there_at_once(opened: Open, kept: str) -> None:
    code = "def f(x):\n    kept.x = x\n    time.sleep(0.2)\n    return kept.x + 1"
    found = together(opened(f"import threading, types\nkept = {kept}\n{code}"), threads=True)
    right = [torch.equal(one, X + turn + 1) for turn, one in enumerate(found)]
    assert all(right) == ("threading" in kept)


def test_one_that_finds_no_memory_is_told_apart(opened: Open) -> None:
    process = opened("def f(x):\n    raise torch.OutOfMemoryError('CUDA out of memory')")
    with pytest.raises(CandidateOutOfMemory, match="CUDA out of memory") as raised:
        process.call([X])
    assert raised.value.cause == "mine.py:3: OutOfMemoryError"


def test_one_that_raises_fails_all_of_its_message(opened: Open) -> None:
    with pytest.raises(CandidateError, match="raised ValueError: no"):
        together(opened("def f(x): raise ValueError('no')"), threads=True)


# --- calls ahead --------------------------------------------------------------------------------------------------


def ahead(process: CandidateProcess, count: int = 4) -> tuple[list[Any], CallsAhead]:
    """The results of calls that were made in one message, and what is left of it: of one that raises its exception."""
    each = [(X + turn,) for turn in range(count)]
    sent, found = process.send(each), list[Any]()
    with process.answering(sent):
        for values in each:
            try:
                found.append(process.call(values))
            except CandidateError as error:
                found.append(error)
    return found, sent


COUNT = "calls = 0\ndef f(x):\n    global calls\n    calls += 1\n"


def test_calls_ahead_are_made_once_and_answered_by_their_arguments(opened: Open) -> None:
    process = opened(f"{COUNT}    return x + calls")
    found, sent = ahead(process)
    assert [one[0, 0].item() for one in found] == [1, 3, 5, 7] and sent.error is None
    assert process.call((X,))[0, 0].item() == 5  # the fifth


def test_other_calls_wait_for_those_ahead(opened: Open) -> None:
    process = opened(f"{COUNT}    time.sleep(0.1)\n    return x + calls")
    sent = process.send([(X,), (X,)])
    assert process.call((X,))[0, 0].item() == 3
    with process.answering(sent):
        assert process.call((X,))[0, 0].item() == 1


def test_one_that_always_fails_is_shown_by_itself(opened: Open) -> None:
    found, sent = ahead(opened("def f(x):\n    if x[0, 0] == 2: raise ValueError('two')\n    return x"))
    assert [isinstance(one, CandidateError) for one in found] == [False, False, True, False]
    assert sent.error is None


@pytest.mark.parametrize(
    ("work", "told"),
    [
        ("if calls == 3: raise ValueError('third')", "raised ValueError: third"),
        ("if calls == 3: os._exit(0)", ""),
        ("if calls == 3: x.mul_(2)", "it changed its inputs"),
    ],
)
def test_what_goes_wrong_in_a_row_alone_is_left(opened: Open, work: str, told: str) -> None:
    """One that ends begins anew: its third call is that of the third arguments."""
    found, sent = ahead(opened(f"{COUNT}    {work}\n    return x + 1"))
    assert [isinstance(one, CandidateError) for one in found] == [False, False, not told, False]
    assert (told in str(sent.error)) if told else sent.error is None


def test_each_call_in_a_row_has_the_limit_of_one(tmp_path: Path) -> None:
    text = "import time\ndef f(x):\n    time.sleep(1.6 if x[0, 0] < 3 else 40)\n    return x"
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    with CandidateProcess(tmp_path / "mine.py", "f", "cpu", Limits(call=4.0)) as process:
        found, sent = ahead(process, 3)
        assert all(torch.equal(one, X + turn) for turn, one in enumerate(found)) and sent.error is None
        begun = time.monotonic()
        found, _ = ahead(process, 4)
        assert time.monotonic() - begun < 35 and "no answer within the limit" in str(found[3])


# --- what outlives a call -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("work", "told"),
    [
        ("while True: time.sleep(1e-3)", "1 threads of 1 processes went on after it"),
        ("while True: sum(range(1000))", "1 threads of 1 processes went on after it"),
        ("time.sleep(60)", ""),
    ],
)
def test_what_goes_on_between_calls_is_seen(opened: Open, work: str, told: str) -> None:
    process = opened(
        f"import threading\ndef run():\n    {work}\ndef f(x):\n    threading.Thread(target=run, daemon=True).start()"
    )
    process.call((X,))
    assert told in process.awake(0.2) if told else not process.awake(0.2)


def test_a_clock_that_is_replaced_is_named(opened: Open) -> None:
    process = opened(
        "now = time.perf_counter\ndef f(x):\n    time.perf_counter = lambda: now() / 100\n    return x + 1"
    )
    with pytest.raises(CandidateError, match=r"patches time\.perf_counter"):
        process.call((X,))
