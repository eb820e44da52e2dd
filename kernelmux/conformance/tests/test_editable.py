"""`pip install -e .`: a path that Python and the readers of sources follow alike, new files included."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what an installation reads."""
    if int(importlib.metadata.version("setuptools").split(".")[0]) < 77:
        pytest.skip("pyproject.toml asks for setuptools 77 or later")
    copy = tmp_path_factory.mktemp("checkout")
    for part in ("registry", "backends", "nn", "bazel"):
        shutil.copytree(TOP / part, copy / part, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    shutil.copytree(TOP / ".pyroot", copy / ".pyroot", symlinks=True)
    for part in ("emulator", "conformance", "perf", "tune"):
        (copy / part).mkdir()
        (copy / part / "__init__.py").touch()
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
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
    assert pth.read_text() == f"{(checkout / '.pyroot').resolve()}\n"
    assert not list(installed.glob("*finder*"))
    (info,) = installed.glob("kernelmux-*.dist-info")
    assert "kernelmux = kernelmux.registry.cli.main:main" in (info / "entry_points.txt").read_text()


def test_files_that_come_later_are_seen(checkout: Path, installed: Path) -> None:
    (checkout / "registry" / "later.py").write_text("VALUE = 7\n")
    code = f"import site; site.addsitedir({str(installed)!r}); from kernelmux.registry import later; print(later.VALUE)"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}  # which names this checkout
    command = [sys.executable, "-c", code]
    told = subprocess.run(command, cwd=installed, env=environment, capture_output=True, text=True, check=False)
    assert told.stdout == "7\n", told.stderr


def test_a_wheel_is_built_by_setuptools_as_ever(checkout: Path, tmp_path: Path) -> None:
    code = "import sys; sys.path.insert(0, 'bazel'); import build_backend; build_backend.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=checkout, check=True, capture_output=True)
    assert [path.name for path in tmp_path.iterdir()] == ["kernelmux-0.1.0-py3-none-any.whl"]


def test_a_source_distribution_can_be_built_from(checkout: Path, tmp_path: Path) -> None:
    """It holds the build backend that its pyproject.toml names."""
    code = "import sys; sys.path.insert(0, 'bazel'); import build_backend; build_backend.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=checkout, check=True, capture_output=True)
    (built,) = tmp_path.iterdir()
    with tarfile.open(built) as archive:
        assert "kernelmux-0.1.0/bazel/build_backend.py" in archive.getnames()
