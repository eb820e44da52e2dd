"""What several tests of perf begin with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernelmux.perf import peers
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.util import entry_points


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Other libraries are a backend during a test, and unknown after it."""
    monkeypatch.setattr(entry_points, "_announced", {})
    peers.join()
    yield
    entry_points.find.cache_clear()
    registered.backend.cache_clear()
    registered.variants.cache_clear()
    registered.forget_ladders()
