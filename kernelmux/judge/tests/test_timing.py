"""Times by the judge's clock: whose results count, what may be left out of them, and what is no time."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from kernelmux.candidate.gpu import timed_calls
from kernelmux.judge import timing
from kernelmux.judge.verdict import KernelVerdict, verdict
from kernelmux.registry import catalog
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.util import cards

ADD = "import torch\n\ndef add(x, y):\n    return torch.add(x, y).contiguous()\n"
BY_ADDRESS = """
import torch

kept = {}

def add(x, y):
    place = x.data_ptr(), x.shape, x.dtype
    if place not in kept or x.shape != (96, 50):
        kept[place] = torch.add(x, y).contiguous()
    return kept[place].clone()
"""
LATE = """
import threading, time
import torch

def add(x, y):
    out = torch.empty_like(x + y, memory_format=torch.contiguous_format)
    if x.shape != (96, 50):
        return torch.add(x, y, out=out)
    threading.Thread(target=lambda: (time.sleep(0.2), torch.add(x, y, out=out))).start()
    return out
"""
SECOND_HALF = """
import torch

calls = 0

def add(x, y):
    global calls
    calls += x.shape == (96, 50)
    return torch.empty_like(x) if calls > 30 and calls % 2 else torch.add(x, y).contiguous()
"""
WORKLOAD = "x=96x50:fp32 y=96x50"


def judged(source: str) -> KernelVerdict:
    return verdict(source, "add", checks=("accuracy",), allow=("torch",), times=(WORKLOAD,), seed=5)


def test_a_right_function_has_a_time() -> None:
    found = judged(ADD)
    (row,) = found.times
    assert found.good and [item["check"] for item in found.items] == ["accuracy", "time"]
    assert 0 < row["seconds"] < 0.01 and 0 < row["claim"] < 0.01 and row["floor"] == 0
    assert row["calls"] >= timing.LEAST and row["handshake"] < 0.5 and row["workload"] == WORKLOAD
    assert found.as_dict()["times"] == found.times


@pytest.mark.parametrize("source", [BY_ADDRESS, LATE, SECOND_HALF], ids=["by_address", "late", "second_half"])
def test_a_wrong_result_of_a_timed_call_fails(source: str) -> None:
    found = judged(source)
    assert {item["check"]: item["status"] for item in found.items} == {"accuracy": "passed", "time": "failed"}
    assert "timed call" in found.items[-1]["text"] and not found.times and not found.good


@pytest.mark.parametrize("workload", ["x=96x50", "x=96x50 y=3x4", "z=1", "fast"])
def test_what_is_no_workload_is_an_error_before_anything_runs(workload: str) -> None:
    with pytest.raises(ArgumentError):
        verdict(ADD, "add", times=(workload,), tell=lambda outcome: pytest.fail("something ran"))


def test_emulated_kernels_are_not_timed() -> None:
    path = Path(timing.__file__).with_name("honest") / "triton_looped_softmax.py"
    found = verdict(path, "softmax", checks=("accuracy",), times=())
    assert found.items[-1]["status"] == "skipped" and "emulated" in found.items[-1]["text"] and not found.times


def test_a_time_below_the_floor_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "least", lambda trial, device, count: 1.0)
    found = judged(ADD)
    assert found.items[-1]["status"] == "failed" and "1e+06 us that memory and arithmetic" in found.items[-1]["text"]


def test_the_floor_is_that_of_memory_or_arithmetic() -> None:
    """Inputs that the last-level cache may hold, and outputs that may still be there, are not counted."""
    card = cards.named("h100")
    spec = catalog.spec("matmul")
    call = spec.hypothetical(spec.case("a=8192x8192 b=8192x8192"), torch.bfloat16)
    assert timing.floor(call, card, 100) == pytest.approx(2 * 8192**3 / card.rates["bf16"])
    spec = catalog.spec("add")
    call = spec.hypothetical(spec.case("x=4096x4096 y=4096x4096"), torch.float32)
    moved = 3 * 4 * 4096**2
    assert timing.floor(call, card, 1000) == pytest.approx((moved - 2 * card.l2 / 1000) / card.bandwidth)
    assert timing.floor(call, dataclasses.replace(card, bandwidth=0.0), 1000) < 1e-5
    small = spec.hypothetical(spec.case("x=8x8 y=8x8"), torch.float32)
    assert timing.floor(small, card, 8) < 1e-9


def test_a_function_may_leave_out_what_has_a_default() -> None:
    source = "import torch\n\ndef softmax(x):\n    return torch.softmax(x.double(), -1).to(x.dtype)\n"
    found = verdict(source, "softmax", checks=("accuracy",), allow=("torch",), times=("x=96x50:fp32",), seed=5)
    assert found.good, found.items


def test_calls_become_fewer_where_memory_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, region = list[int](), timed_calls._region

    def small(size: int, *more: object) -> object:
        drawn.append(size)
        if size > 1 << 20:
            raise torch.OutOfMemoryError("no room")
        return region(size, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(timed_calls, "_region", small)
    (row,) = judged(ADD).times
    assert max(drawn) > 1 << 20 and 2 <= row["calls"] * 3 * 96 * 50 * 4 <= 1 << 20


def test_of_a_large_call_parts_are_compared_that_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "LARGE", 3 * 96 * 50 // 4)
    assert judged(ADD).good
    last_row = ADD.replace(".contiguous()", ".contiguous()[[*range(len(x) - 1), 0]]")
    only = last_row.replace(
        "    return", "    if x.shape != (96, 50):\n        return torch.add(x, y).contiguous()\n    return"
    )
    (item,) = [item for item in judged(only).items if item["check"] == "time"]
    assert item["status"] == "failed" and "50 of 1200 wrong" in item["text"]
