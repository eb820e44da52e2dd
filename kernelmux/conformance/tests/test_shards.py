"""Bazel's shards divide the tests of a target: each test is in one of them, and those of a file are in the same one."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

Shard = runpy.run_path(str(Path(__file__).parents[3] / "bazel" / "pytest_main.py"))["Shard"]


def kept(counts: dict[str, int], index: int, total: int) -> list[str]:
    """The tests that a shard keeps, as file and number, of files with so many tests each."""
    items = [
        SimpleNamespace(path=Path(name), name=f"{name}{i}") for name, count in counts.items() for i in range(count)
    ]
    Shard(index, total).pytest_collection_modifyitems(items)
    return [item.name for item in items]


def test_files_go_whole_to_shards_with_as_many_tests() -> None:
    counts = {"a": 2, "b": 5, "c": 3, "d": 1}
    assert kept(counts, 0, 2) == ["b0", "b1", "b2", "b3", "b4", "d0"]
    assert kept(counts, 1, 2) == ["a0", "a1", "c0", "c1", "c2"]


def test_every_test_is_in_one_shard() -> None:
    counts = {f"file{i}_": 1 + i * i % 7 for i in range(20)}
    found = [name for index in range(3) for name in kept(counts, index, 3)]
    assert len(found) == len(set(found)) == sum(counts.values())


def test_of_a_single_file_neighbours_go_to_different_shards() -> None:
    assert [kept({"b": 5}, index, 2) for index in (0, 1)] == [["b0", "b2", "b4"], ["b1", "b3"]]
