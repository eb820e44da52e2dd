"""`pip install -e .`: a path that Python and the readers of sources follow alike, new files included."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[3]
PACKAGE = TOP / "kernelmux"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what an installation reads."""
    if int(importlib.metadata.version("setuptools").split(".")[0]) < 77:
        pytest.skip("pyproject.toml asks for setuptools 77 or later")
    copy = tmp_path_factory.mktemp("checkout")
    for part in ("registry", "backends", "nn"):
        shutil.copytree(
            PACKAGE / part, copy / "kernelmux" / part, ignore=shutil.ignore_patterns("__pycache__", "tests")
        )
    for path in (*PACKAGE.glob("*.py*"), PACKAGE / "py.typed"):
        shutil.copy(path, copy / "kernelmux")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(TOP / name, copy)
    return copy


@pytest.fixture(scope="module")
def installed(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of packages after an editable install, without a network."""
    target = tmp_path_factory.mktemp("site")
    options = ["--quiet", "--no-build-isolation", "--no-deps", "--target", str(target)]
    command = [sys.executable, "-m", "pip", "install", *options, "-e", str(checkout)]
    told = subprocess.run(command, cwd=target, capture_output=True, text=True, check=False)
    if "No module named pip" in told.stderr:
        pytest.skip("there is no pip here")
    assert told.returncode == 0, told.stderr
    return target


def test_it_is_a_path_and_no_import_hook(checkout: Path, installed: Path) -> None:
    (pth,) = installed.glob("*.pth")
    assert pth.read_text() == f"{checkout.resolve()}\n"
    assert not list(installed.glob("*finder*"))
    (info,) = installed.glob("kernelmux-*.dist-info")
    assert "kernelmux = kernelmux.registry.cli.main:main" in (info / "entry_points.txt").read_text()


def test_files_that_come_later_are_seen(checkout: Path, installed: Path) -> None:
    (checkout / "kernelmux/registry/later.py").write_text("VALUE = 7\n")
    code = f"import site; site.addsitedir({str(installed)!r}); from kernelmux.registry import later; print(later.VALUE)"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}  # which names this checkout
    command = [sys.executable, "-c", code]
    told = subprocess.run(command, cwd=installed, env=environment, capture_output=True, text=True, check=False)
    assert told.stdout == "7\n", told.stderr
