"""What the judge is tried with: every file says what it is, and none is imported to learn it."""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from kernelmux.judge import collection
from kernelmux.judge.collection import Entry
from kernelmux.registry import catalog
from kernelmux.registry.errors import SpecError

FAMILIES = {
    "clocks",
    "crashes_and_hangs",
    "environment",
    "filesystem",
    "forging_output",
    "laziness",
    "memoising",
    "numerical_corner_cutting",
    "patching_the_judge",
    "reading_the_reference",
    "resource_exhaustion",
    "special_casing",
    "threads_and_streams",
    "wrappers",
}
MOST = 12  # files of a family, as modules of a room
GOOD = '"""What it does."""\n\nOP = "add"\nFUNCTION = "add"\nFOUND = ("a", "b")\nNEEDS = "cpu"\nALLOW = "torch"\n'
ENTRIES = [*collection.attacks(), *collection.honest()]


def of_folder(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> Entry:
    """What is read of one attack with this text."""
    (folder / "attacks/family").mkdir(parents=True)
    (folder / "attacks/family/__init__.py").write_text("raise ImportError\n")
    (folder / "attacks/family/one.py").write_text(text)
    monkeypatch.setattr(collection, "HOME", folder)
    (entry,) = collection.attacks()
    return entry


def test_there_are_enough_and_of_every_family() -> None:
    counted = Counter(entry.family for entry in collection.attacks())
    assert set(counted) == FAMILIES and max(counted.values()) <= MOST and min(counted.values()) >= 5
    assert counted.total() >= 80 and len(collection.honest()) >= 30
    assert {entry.needs for entry in collection.attacks()} == set(collection.NEEDS)


def test_names_stand_once() -> None:
    """Files are named on the command line and in tables by their name alone."""
    assert [name for name, count in Counter(entry.name for entry in ENTRIES).items() if count > 1] == []


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.family}/{entry.name}")
def test_its_constants_hold(entry: Entry) -> None:
    assert entry.op in catalog.names()
    body = ast.parse(entry.path.read_text(encoding="utf-8")).body
    functions = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    assigned = {ast.unparse(target) for node in body if isinstance(node, ast.Assign) for target in node.targets}
    assert entry.function in functions | assigned
    assert bool(entry.found) == (entry.family != collection.HONEST)
    assert not re.search(entry.found, "") or not entry.found, "what matches everything finds nothing"
    uses = {
        alias.name for node in ast.walk(ast.Module(body, [])) if isinstance(node, ast.Import) for alias in node.names
    }
    assert (entry.needs == "triton") == ("triton" in uses)
    assert len(entry.summary) <= 124 and entry.summary.endswith(".")


def test_reading_the_collection_runs_nothing_of_it() -> None:
    code = (
        "import sys; from kernelmux.judge import collection as c; c.attacks(); c.honest();"
        "print(*[name for name in sys.modules if name.startswith(('kernelmux.judge.attacks', 'kernelmux.judge.honest'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_an_attack_cannot_be_imported_by_its_name() -> None:
    with pytest.raises(ImportError, match="hostile code"):
        __import__("kernelmux.judge.attacks.forging_output.zeros")


def test_nothing_names_an_attack_in_an_import() -> None:
    top = collection.HOME.parents[1]
    files = [p for folder in ("kernelmux", "examples", "bazel") for p in (top / folder).rglob("*.py")]
    law = re.compile(r"^\s*(from|import) kernelmux\.judge\.(attacks|honest)", re.MULTILINE)
    assert [str(path) for path in files if law.search(path.read_text(encoding="utf-8"))] == []


def test_an_entry_is_what_its_file_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    entry = of_folder(monkeypatch, tmp_path, GOOD)
    path = tmp_path / "attacks/family/one.py"
    assert entry == Entry("one", "family", path, "add", "add", "a|b", "cpu", "torch", "What it does.")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"""What it does."""\n', "", "expected a docstring"),
        ('OP = "add"\n', "", "OP: expected a constant at the top level, got none"),
        ('FUNCTION = "add"', "FUNCTION = name()", r"FUNCTION: expected a literal, got name\(\)"),
        ('FUNCTION = "add"', "FUNCTION = 3", "FUNCTION: expected a text, got 3"),
        ('NEEDS = "cpu"', 'NEEDS = "tpu"', "NEEDS: expected one of cpu, gpu, triton, got 'tpu'"),
        ('("a", "b")', '"a("', "FOUND: expected a regular expression, got 'a\\('"),
        ('("a", "b")', "()", r"FOUND: expected a regular expression or a tuple of them, got \(\)"),
        ('ALLOW = "torch"', "ALLOW = 1", "ALLOW: expected a text, got 1"),
    ],
)
def test_a_wrong_constant_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, old: str, new: str, told: str
) -> None:
    with pytest.raises(SpecError, match=f"one.py: {told}"):
        of_folder(monkeypatch, tmp_path, GOOD.replace(old, new))
