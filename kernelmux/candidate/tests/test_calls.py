"""Several calls in one message, and what goes on between calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelmux.candidate.errors import CandidateError
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


def gathered(process: CandidateProcess, threads: bool) -> list[Any]:
    with process.gathered(4, threads), ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda turn: process.call((X + turn,)), range(4)))


def test_calls_in_a_row_have_no_pause_between_them(opened: Open) -> None:
    soon = "last = [0.0, None]\ndef f(x):\n    y = last[1] if time.monotonic() - last[0] < 5e-4 else x + 1\n"
    process = opened(f"{soon}    last[:] = time.monotonic(), y\n    return y.clone()")
    assert all(torch.equal(process.call((X + turn,)), X + turn + 1) for turn in range(4))  # as each crosses
    assert sum(torch.equal(found, X + turn + 1) for turn, found in enumerate(gathered(process, threads=False))) < 4


@pytest.mark.parametrize("kept", ["types.SimpleNamespace()", "threading.local()"])
def test_calls_in_threads_are_there_at_once(opened: Open, kept: str) -> None:
    code = "def f(x):\n    kept.x = x\n    time.sleep(0.2)\n    return kept.x + 1"
    found = gathered(opened(f"import threading, types\nkept = {kept}\n{code}"), threads=True)
    right = [torch.equal(one, X + turn + 1) for turn, one in enumerate(found)]
    assert all(right) == ("threading" in kept)


def test_one_that_raises_fails_all_that_were_gathered(opened: Open) -> None:
    with pytest.raises(CandidateError, match="raised ValueError: no"):
        gathered(opened("def f(x): raise ValueError('no')"), threads=True)


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
