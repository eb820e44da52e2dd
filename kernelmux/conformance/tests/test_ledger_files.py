"""The ledger's files: those that ship say once what entries share; those of packages, and older ones, do not."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelmux.conformance.verified import ledger
from kernelmux.registry.errors import SpecError
from kernelmux.registry.util.files import GpuFiles

VERSIONS = {"torch": "2.11.0", "triton": "3.6.0"}
ENTRY = {
    "asked": "0123",
    "budget": 0.5,
    "date": "2026-11-22",
    "judge": "1787bc16e2de",
    "oracle": "9cf2b7f9131d",
    "passed": 9,
    "source": "2b1c83db0b97",
    "tier": "ci",
    "versions": VERSIONS,
}
OLDER = {name: value for name, value in ENTRY.items() if name not in ("asked", "judge", "oracle")} | {
    "spec": "2c4164e6e958"
}
BOOK: dict[str, Any] = {"schema": 1, "gpu": "NVIDIA H200", "capability": "sm_90"}
BOOK |= {"entries": {"add/cuda/scalar": ENTRY, "add/triton/blocked": ENTRY, "copy/triton/blocked": OLDER}}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuFiles]:
    monkeypatch.setattr(ledger, "PLACE", GpuFiles(tmp_path, "verified.json"))
    ledger.books.cache_clear()
    yield ledger.PLACE
    ledger.books.cache_clear()


def test_what_ships_says_versions_once_and_loses_nothing(place: GpuFiles) -> None:
    ledger.write(BOOK)
    written = place.of("NVIDIA H200").read_text(encoding="utf-8")
    assert written.count("2.11.0") == written.count('0123"') == 1
    assert ledger.own() == [BOOK]


def test_a_file_with_versions_in_each_entry_is_read(place: GpuFiles) -> None:
    path = place.of("NVIDIA H200")
    path.parent.mkdir()
    path.write_text(json.dumps(BOOK), encoding="utf-8")
    assert ledger.own() == [BOOK]


def test_a_name_without_its_value_is_damage(place: GpuFiles) -> None:
    ledger.write(BOOK)
    path = place.of("NVIDIA H200")
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), "versions": {}}), encoding="utf-8")
    with pytest.raises(SpecError, match="the ledger is damaged"):
        ledger.own()
