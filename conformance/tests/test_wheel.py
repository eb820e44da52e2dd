"""What a user gets from pip: every module and data file, under one name, and none of the unit tests."""

import importlib.metadata
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
PARTS = ("registry", "backends", "emulator", "conformance", "perf")
SHIPPED = {".py", ".cu", ".cuh", ".json", ".toml", ".html", ".css", ".pyi", ".typed"}
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of the files in a wheel built from a copy of the checkout, where setuptools may leave its folders."""
    if int(importlib.metadata.version("setuptools").split(".")[0]) < 77:
        pytest.skip("pyproject.toml asks for setuptools 77 or later")
    copy = tmp_path_factory.mktemp("checkout")
    for part in PARTS:
        shutil.copytree(TOP / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(TOP / name, copy)
    subprocess.run([sys.executable, "-c", BUILD, "."], cwd=copy, check=True, capture_output=True)
    (built,) = copy.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        return set(archive.namelist())


def expected() -> set[str]:
    """Every file of the parts that is not a test, under its import path."""
    found = set()
    for path in (path.relative_to(TOP) for part in PARTS for path in (TOP / part).rglob("*")):
        if path.suffix in SHIPPED and "tests" not in path.parts and "__pycache__" not in path.parts:
            inside = path.relative_to("registry/public") if path.is_relative_to("registry/public") else path
            found.add(Path("kernelmux", inside).as_posix())
    return found


def test_the_wheel_holds_the_parts_and_nothing_else(wheel: set[str]) -> None:
    shipped = {name for name in wheel if ".dist-info/" not in name}
    assert shipped == expected()


def test_the_wheel_names_license_and_command(wheel: set[str]) -> None:
    assert {name.split("/", 1)[1] for name in wheel if ".dist-info/" in name} >= {
        "licenses/LICENSE",
        "entry_points.txt",
    }
