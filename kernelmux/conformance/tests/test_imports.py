"""Who imports whom: no module one that imports it, and no room one above it; for types alone, too."""

import ast
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

TOP = Path(__file__).parents[3]
PARTS = (
    "backends",
    "conformance",
    "docs",
    "emulator",
    "nn",
    "perf",
    "registry",
    "runner",
    "candidate",
    "judge",
    "tune",
    "warm",
)


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
    assert circle(TOP / "kernelmux" / part) == ""


def test_a_circle_is_found(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "one.py").write_text("from kernelmux.part import two\n")
    (tmp_path / "part" / "two.py").write_text("if TYPE_CHECKING:\n    from kernelmux.part.one import name\n")
    assert sorted(circle(tmp_path / "part").split(" is imported by ")[1:]) == [
        "kernelmux.part.one",
        "kernelmux.part.two",
    ]


# The rooms of the registry and of the suites: docs/architecture.md draws in which direction they import.

PAGE = TOP / "docs" / "architecture.md"
ROOMY = ("registry", "conformance", "perf")  # the parts with rooms, as the page has their pictures
MOST = 12  # modules of a room
MANY = ("ops", "checks", "mutants", "peers")  # a file for each operator or check
PASSING = ("backend", "cases", "conditions", "cost", "numerics", "packages", "selection", "shadow", "spec", "stubs")
FACES = {f"kernelmux.registry.{name}" for name in PASSING}
EVERY = {name: file for part in ROOMY for name, file in modules(TOP / "kernelmux" / part).items()}


def floors(page: str) -> dict[str, list[str]]:
    """Of each part the rooms of its picture on the page, the lowest first."""
    lines = [line for line in page.splitlines() if line.startswith("cli → ")]
    return {part: line.split(" → ")[::-1] for part, line in zip(ROOMY, lines, strict=True)}


def room(module: str) -> str:
    """The room of a module: "spec" for kernelmux.registry.spec.cost, "errors" for what has none."""
    name = module.split(".")[2]
    return {"elsewhere": "catalog", "scaffold": "cli"}.get(name, name)


def named(file: Path, part: str) -> Iterator[str]:
    """What a file imports of a part, within functions too: of `from a import b` a.b if that is a module, else a."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(f"kernelmux.{part}"):
            names = {f"{node.module}.{name.name}" for name in node.names}
            yield from (name if name in EVERY else str(node.module) for name in names)


def offences(files: dict[str, Path], floors: dict[str, list[str]]) -> list[str]:
    """Imports that go up, or to a name that is for packages elsewhere, and modules in a room that no picture has."""
    found = []
    for module, file in files.items():
        part = module.split(".")[1]
        order = floors[part]
        if room(module) not in order:
            found.append(f"{module} stands in no room of the picture")
            continue
        for other in {*named(file, part)} - {f"kernelmux.{part}"}:
            if other in FACES and room(module) != "ops":
                found.append(f"{module} imports {other}, which is for packages elsewhere")
            elif room(other) in order and order.index(room(other)) > order.index(room(module)):
                found.append(f"{module} imports {other}, which stands above it")
    return found


def inside() -> dict[str, Path]:
    """The modules of the rooms: no templates, nothing that only passes names on, no `__main__`."""
    return {m: f for m, f in EVERY.items() if m not in FACES and not {"templates", "__main__"} & {*m.split(".")}}


def drawn() -> dict[str, list[str]]:
    return floors(PAGE.read_text(encoding="utf-8"))


def test_no_room_imports_what_stands_above_it() -> None:
    assert offences(inside(), drawn()) == []


def test_no_room_has_more_than_twelve_modules() -> None:
    counted = Counter((m.split(".")[1], room(m)) for m in inside() if m.count(".") > 2)
    assert {place: count for place, count in counted.items() if count > MOST and place[1] not in MANY} == {}


@pytest.mark.parametrize(
    ("module", "text", "told"),
    [
        ("kernelmux.registry.spec.new", "from kernelmux.registry.call import dispatch\n", "stands above it"),
        ("kernelmux.registry.call.new", "from kernelmux.registry.spec import OpSpec\n", "packages elsewhere"),
        ("kernelmux.registry.call.new", "from kernelmux.registry.spec.op_spec import OpSpec\n", ""),
        ("kernelmux.conformance.judging.new", "from kernelmux.conformance.session import plan\n", "stands above it"),
        ("kernelmux.perf.new.module", "", "no room"),
    ],
)
def test_an_import_that_goes_up_is_found(tmp_path: Path, module: str, text: str, told: str) -> None:
    (tmp_path / "new.py").write_text(text)
    found = offences({**inside(), module: tmp_path / "new.py"}, drawn())
    assert all(told in line for line in found) and len(found) == bool(told)
