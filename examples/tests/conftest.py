"""The examples as modules: they lie in no package. Packages of theirs as pip leaves them."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch


@pytest.fixture
def example() -> Callable[[str], ModuleType]:
    """A function from the name of an example to its module."""

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"example_{name}", Path(__file__).parents[1] / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors: threads that wait for each other on a busy machine cost more than they do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(folder: Path, *words: str, path: str) -> subprocess.CompletedProcess[str]:
    """Python with these words, in a folder, with this PYTHONPATH."""
    env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, check=False)


def search(site: Path) -> str:
    """The PYTHONPATH under which the packages of `site` are found."""
    return os.pathsep.join((str(site / "packages"), *(path for path in sys.path if path)))


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with PACKAGE of the module in "packages", as pip leaves it; built from a copy, which is written to."""
    pytest.importorskip("pip", reason="the package is installed by pip")
    folder = tmp_path_factory.mktemp("site")
    copy = shutil.copytree(request.module.PACKAGE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", str(folder / "packages")]
    told = run(folder, "-m", "pip", "install", *options, str(copy), path="")
    assert told.returncode == 0, told.stderr
    return folder
