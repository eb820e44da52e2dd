"""Turns for gigabytes of a GPU's memory, on a GPU that is made up."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import filelock
import pytest
import torch

from kernelmux.conformance.judging import exclusive_memory
from kernelmux.conformance.judging.exclusive_memory import room, turn
from kernelmux.conformance.judging.trial_outcome import Record
from kernelmux.conformance.options import Options
from kernelmux.conformance.session import execute
from kernelmux.conformance.session.execute import Outcome
from kernelmux.conformance.session.plan import Item

GIB = 2**30
CUDA = torch.device("cuda", 0)
ITEM = Item("max_pool2d_backward", "triton", "rows", "accuracy")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, list[float]]]:
    """80 GiB, of which 60 are free and this process has 1; what is done to it."""
    done: dict[str, list[float]] = {"fraction": [], "emptied": []}
    properties = SimpleNamespace(uuid="made-up")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: GIB)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done["emptied"].append(1))
    fraction = lambda share, device: done["fraction"].append(share)  # noqa: E731
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", fraction)
    yield done
    exclusive_memory.shared_by(1)


@pytest.mark.parametrize(("sharers", "free"), [(1, 60), (13, 36), (2, 58), (40, 0)])
def test_the_other_processes_keep_room(sharers: int, free: int, gpu: object) -> None:
    exclusive_memory.shared_by(sharers)
    assert room(CUDA) == free * GIB


def test_inside_a_process_takes_what_there_is_room_for_and_others_wait(
    gpu: dict[str, list[float]], tmp_path: Path
) -> None:
    exclusive_memory.shared_by(13)
    with turn(CUDA), exclusive_memory.memory_turn(CUDA):  # the inner one waits for nothing
        assert gpu["fraction"] == [37 / 80] and len(gpu["emptied"]) == 2
        (lock,) = tmp_path.glob("*.lock")
        with pytest.raises(filelock.Timeout):
            filelock.FileLock(lock).acquire(timeout=0)
    assert gpu["fraction"] == [37 / 80, 1.0] and len(gpu["emptied"]) == 4
    filelock.FileLock(lock).acquire(timeout=0).lock.release()


def _failed(cause: str, text: str) -> Outcome:
    return Outcome(ITEM, "failed", text, records=[Record("", "", "", 0, "failed", cause=cause, text=text)])


@pytest.mark.parametrize(
    ("first", "calls"),
    [
        (_failed("x.py:3: OutOfMemoryError", "CUDA out of memory. Tried to allocate 34 MiB"), 2),
        (_failed("x.py:3: OutOfMemoryError", "Out of memory allocating 512 bytes"), 2),
        (_failed("", "the driver says CUDA_ERROR_OUT_OF_MEMORY"), 2),
        (_failed("x.py:3: ValueError", "wrong"), 1),
    ],
)
def test_an_item_without_memory_waits_for_its_turn_and_runs_once_more(
    first: Outcome, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, turns = iter([first, Outcome(ITEM, "passed")]), []

    @contextmanager
    def waiting(device: torch.device) -> Iterator[None]:
        turns.append(device)
        yield

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(execute, "turn", waiting)
    monkeypatch.setattr(execute, "_run", lambda *what: next(made))
    outcome = execute.execute(ITEM, Options(device="cuda"))
    assert (outcome.status, len(turns)) == (("passed", 1) if calls == 2 else ("failed", 0))
