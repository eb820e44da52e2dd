"""Workers take turns with the GPUs, and each sees its own as the first."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from kernelmux.conformance.cli import run
from kernelmux.conformance.options import Options
from kernelmux.conformance.session import worker_devices


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(worker_devices.VARIABLE, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)


def test_gpus_are_shared_out_evenly(four: None) -> None:
    orders = [worker_devices.own_first(worker_devices.visible(), f"gw{i}") for i in range(32)]
    assert set(Counter(order[0] for order in orders).values()) == {8}
    assert all(sorted(order) == ["0", "1", "2", "3"] for order in orders)


def test_what_the_caller_may_see_is_shared_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(worker_devices.VARIABLE, "GPU-b, 3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    worker_devices.take(worker_devices.visible(), "gw3")
    assert worker_devices.visible() == ["3", "GPU-b"]


def test_one_gpu_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(worker_devices.VARIABLE, raising=False)
    worker_devices.take(["0"], "gw1")
    worker_devices.take([], "gw1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert worker_devices.visible() == ["0"]


def test_more_gpus_get_more_workers(four: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.target_device, "cores", lambda: 64)
    card = SimpleNamespace(total_memory=80 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    cuda = Options(device="cuda")
    assert run._workers("auto", 5000, cuda) == 4 * run.SHARE_GPU == 64
    assert run._workers("auto", 5 * run.PER_PROCESS, cuda) == 5 and run._workers("3", 5000, cuda) == 3
    card.total_memory = 10 * 2**30
    assert run._workers("auto", 5000, cuda) == 4 * 4
