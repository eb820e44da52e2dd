"""The keys of --json are those of the table on the page about choosing a backend."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelmux.registry.cli import main

PAGE = (Path(__file__).parents[3] / "docs/choosing_a_backend.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\w+)(?: OP)?` \| (.*) \|$", PAGE.partition("## As data")[2], re.MULTILINE)
WORDS = {"show": ["softmax"], "explain": ["softmax", "--shape", "x=4x40000", "--backend", "cuda/registers,torch_ref"]}
BY_NAME = {"variants", "unavailable", "layout", "arguments", "copies", "times", "versions", "versions_here"}


def keys(value: Any, outer: str = "") -> Iterator[str]:
    """Every key of a document, but for names: of backends, tensors or packages, under a key of BY_NAME."""
    if isinstance(value, list):
        for each in value:
            yield from keys(each)
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from () if outer in BY_NAME else (key,)
            yield from keys(each, "" if outer in BY_NAME else key)


def test_the_table_has_all_commands_that_take_json() -> None:
    assert [command for command, _ in ROWS] == [*(name for name in main.COMMANDS if name != "completion"), "ledger"]


@pytest.mark.parametrize(("command", "told"), ROWS, ids=lambda text: text[:8])
def test_each_key_is_in_the_table(command: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([command, *WORDS.get(command, []), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    named = set(re.findall(r"`(\w+)`", told))
    assert set(found) <= named and set(keys(found)) <= named, set(keys(found)) - named
