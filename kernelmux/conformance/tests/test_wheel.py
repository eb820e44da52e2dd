"""What a user gets from pip: modules and data files under one name, no unit tests, no validation of the emulator."""

import ast
import fnmatch
import importlib.metadata
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelmux.registry.cli import main

TOP = Path(__file__).parents[3]
CHECKOUT_ONLY = (
    "kernelmux/emulator/validation/*",
    "kernelmux/conformance/bits/*",
    "kernelmux/docs/*",
    "kernelmux/records/*/bits.json",
    "kernelmux/records/*/instruction_bits.json",
    "kernelmux/records/*/ncu_*.json",
    "kernelmux/records/*/trials/*",
)
SHIPPED = {".py", ".cu", ".cuh", ".json", ".toml", ".html", ".css", ".csv", ".pyi"}
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Files of a wheel, by name, built from a copy of the checkout, where setuptools may leave its folders."""
    if int(importlib.metadata.version("setuptools").split(".")[0]) < 77:
        pytest.skip("pyproject.toml asks for setuptools 77 or later")
    copy = tmp_path_factory.mktemp("checkout")
    shutil.copytree(TOP / "kernelmux", copy / "kernelmux", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(TOP / name, copy)
    subprocess.run([sys.executable, "-c", BUILD, "."], cwd=copy, check=True, capture_output=True)
    (built,) = copy.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def checkout() -> set[str]:
    """Every file of the package that is of a kind that is shipped."""
    found = (path.relative_to(TOP) for path in (TOP / "kernelmux").rglob("*") if "__pycache__" not in path.parts)
    return {path.as_posix() for path in found if path.name == "py.typed" or path.suffix in SHIPPED}


def modules(files: set[str]) -> set[str]:
    """kernelmux/registry/spec/op_spec.py and kernelmux/registry/spec/__init__.py are both kernelmux.registry.spec."""
    return {f.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for f in files if f.endswith(".py")}


def imported(source: bytes) -> Iterator[str]:
    """Modules that a file may import: `from a import b` gives a and a.b."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


def test_the_wheel_holds_the_parts_and_nothing_else(wheel: dict[str, bytes]) -> None:
    shipped = {name for name in wheel if ".dist-info/" not in name}
    absent = {f for kept in ("*/tests/*", *CHECKOUT_ONLY) for f in fnmatch.filter(checkout(), kept)}
    assert shipped == checkout() - absent


def test_what_only_a_checkout_needs_stays_there(wheel: dict[str, bytes]) -> None:
    for kept in CHECKOUT_ONLY:
        assert fnmatch.filter(checkout(), kept)  # else it has another name by now
        assert not fnmatch.filter(wheel, kept)


def test_no_module_of_the_wheel_imports_what_stays_in_the_checkout(wheel: dict[str, bytes]) -> None:
    absent = modules(checkout()) - modules(set(wheel))
    sources = {name: source for name, source in wheel.items() if name.endswith(".py")}
    assert {f"{name}: {module}" for name in sources for module in imported(sources[name]) if module in absent} == set()


def test_the_wheel_names_license_and_command(wheel: dict[str, bytes]) -> None:
    assert {name.split("/", 1)[1] for name in wheel if ".dist-info/" in name} >= {
        "licenses/LICENSE",
        "entry_points.txt",
    }


HELPED = """
from kernelmux.registry.cli import main as cli
for name in sorted({*cli.COMMANDS, *cli.PROVIDED, *cli.PROGRAMS}, key=lambda name: name == "conformance"):
    print("$", name, flush=True)  # conformance comes last: it ends the process
    try:
        print("status", cli.main([name, "--help"]), flush=True)
    except SystemExit as end:
        print("status", end.code or 0, flush=True)
"""


def test_every_command_of_an_installed_copy_shows_its_help(wheel: dict[str, bytes], tmp_path: Path) -> None:
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    for name, content in wheel.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    env = os.environ | {"PYTHONPATH": str(site)}  # before an editable install of the checkout
    command = [sys.executable, "-P", "-c", HELPED]
    done = subprocess.run(command, cwd=empty, env=env, capture_output=True, text=True, check=False)
    parts = dict(part.split("\n", 1) for part in done.stdout.split("$ ")[1:])
    assert done.returncode == 0 and len(parts) == len(main.COMMANDS) + len(main.PROVIDED) + len(main.PROGRAMS)
    assert parts.pop("docs") == "status 2\n"  # alone in a checkout
    assert [line for line in done.stderr.splitlines() if line.startswith("kernelmux")] == [
        "kernelmux: docs: expected a checkout of kernelmux: an installed package has no kernelmux.docs"
    ]
    for name, text in parts.items():
        assert text.startswith(f"usage: kernelmux {name} "), done.stderr
        assert name == "conformance" or text.endswith("status 0\n")
    assert not list(empty.iterdir())
