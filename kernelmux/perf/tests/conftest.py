"""What several tests of perf begin with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernelmux.perf import peers
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.util import entry_points


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Backends that are announced during a test are unknown after it."""
    monkeypatch.setattr(entry_points, "_announced", {})
    yield
    entry_points.find.cache_clear()
    registered.backend.cache_clear()
    registered.variants.cache_clear()
    registered.forget_ladders()


@pytest.fixture
def joined(forgotten: None) -> None:
    """Other libraries are a backend during a test, and unknown after it."""
    peers.join()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, forgotten: None) -> None:
    """Plan as for a GPU: nothing is run."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(registered, "unavailable", lambda name, device: None)
