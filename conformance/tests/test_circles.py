"""No module imports another one that imports it, directly or through others, be it for its types alone."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
PARTS = ("backends", "conformance", "docs", "emulator", "nn", "registry", "tune")  # perf has a test of its own


def modules(folder: Path) -> dict[str, Path]:
    """Import name -> file of what a part consists of, packages and tests left out."""
    found = (path.relative_to(folder.parent) for path in folder.rglob("*.py") if path.name != "__init__.py")
    return {
        ".".join(("kernelmux", *p.with_suffix("").parts)): folder.parent / p for p in found if "tests" not in p.parts
    }


def imported(file: Path) -> Iterator[str]:
    """Every module that a file imports, within functions and conditions too: `from a import b` gives a and a.b."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (str(node.module), *(f"{node.module}.{name.name}" for name in node.names))


def circle(folder: Path) -> str:
    """The modules of a circle, or an empty text."""
    files = modules(folder)
    found = {name: [m for m in imported(file) if m in files] for name, file in files.items()}
    try:
        TopologicalSorter(found).prepare()
    except CycleError as error:
        return " is imported by ".join(error.args[1])
    return ""


@pytest.mark.parametrize("part", PARTS)
def test_no_module_imports_itself_through_others(part: str) -> None:
    assert circle(TOP / part) == ""


def test_a_circle_is_found(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "one.py").write_text("from kernelmux.part import two\n")
    (tmp_path / "part" / "two.py").write_text("if TYPE_CHECKING:\n    from kernelmux.part.one import name\n")
    assert sorted(circle(tmp_path / "part").split(" is imported by ")[1:]) == [
        "kernelmux.part.one",
        "kernelmux.part.two",
    ]
