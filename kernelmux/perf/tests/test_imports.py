"""The modules of perf stand in an order: none imports itself by way of others, and reports do not reach into the work."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from kernelmux import perf

HOME = Path(perf.__file__).parent
PREFIX = "kernelmux.perf"


def modules() -> dict[str, Path]:
    """Every module of perf outside its tests, by its full name."""
    files = [path for path in HOME.rglob("*.py") if "tests" not in path.relative_to(HOME).parts]
    names = {path: ".".join((PREFIX, *path.relative_to(HOME).with_suffix("").parts)) for path in files}
    return {name.removesuffix(".__init__"): path for path, name in names.items()}


def imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Modules of perf that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PREFIX):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else str(node.module)


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    known = modules()
    return {name: set(imported(path, known)) for name, path in known.items()}


def test_no_module_imports_itself_by_way_of_others(graph: dict[str, set[str]]) -> None:
    assert len(graph) > 30 and f"{PREFIX}.results" in graph[f"{PREFIX}.records"]
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])), pytrace=False)


def test_only_commands_import_reports_and_reports_import_no_work(graph: dict[str, set[str]]) -> None:
    """The folders have an order too; `columns` fits any table to a width."""
    of_reports = {name for name in graph if name.startswith(f"{PREFIX}.report.")}
    users = {name for name, used in graph.items() if used & (of_reports - {f"{PREFIX}.report.columns"})}
    assert users - of_reports == {
        f"{PREFIX}.{name}"
        for name in (
            "command",
            "contribute",
            "front",
            "against.command",
            "against.silence",
            "sweeps.command",
            "emulated.amd",
            "emulated.moved",
            "profile.report",
        )
    }
    work = {f"{PREFIX}.{name}" for name in ("run", "harness", "measure", "clock", "worker", "command", "front", "cli")}
    work |= {name for name in graph if name.startswith(f"{PREFIX}.emulated")}
    assert not {(name, used) for name in of_reports for used in graph[name] & work}
