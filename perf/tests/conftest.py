"""What several tests of perf begin with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernelmux.perf import peers
from kernelmux.registry import backend as registered
from kernelmux.registry import plugins


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Other libraries are a backend during a test, and unknown after it."""
    monkeypatch.setattr(plugins, "_announced", {})
    peers.join()
    yield
    plugins.find.cache_clear()
    registered.backend.cache_clear()
    registered.variants.cache_clear()
