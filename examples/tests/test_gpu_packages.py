"""The backends by load_inline and in numba: they install, are found, refuse clearly, and numba's run on its simulator."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[1]
PACKAGES = ("load_inline_backend", "numba_backend")


def run(folder: Path, *words: str, path: str, **env: str) -> subprocess.CompletedProcess[str]:
    found = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | env
    return subprocess.run([sys.executable, *words], cwd=folder, env=found, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages with both, as pip leaves it; built from copies, where setuptools may write."""
    pytest.importorskip("pip", reason="the packages are installed by pip")
    folder = tmp_path_factory.mktemp("site")
    leave = shutil.ignore_patterns("__pycache__")
    copies = [str(shutil.copytree(EXAMPLES / name, folder / name, ignore=leave)) for name in PACKAGES]
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", str(folder / "packages")]
    told = run(folder, "-m", "pip", "install", *options, *copies, path="")
    assert told.returncode == 0, told.stderr
    return folder


def search(site: Path) -> str:
    return os.pathsep.join((str(site / "packages"), *(path for path in sys.path if path)))


DOCTOR_AND_CALL = """
import torch, kernelmux as kx
from kernelmux.registry.cli import doctor
print(doctor.text(doctor.report(), 200), flush=True)
kx.rms_norm(torch.ones(2, 4), torch.ones(4), backend="load_inline")
"""


def test_both_are_found_and_refuse_a_call_that_they_cannot_run(site: Path) -> None:
    told = run(site, "-c", DOCTOR_AND_CALL, path=search(site), NUMBA_ENABLE_CUDASIM="0")
    assert "from the package kernels_by_load_inline" in told.stdout, told.stdout + told.stderr
    assert "from the package kernels_in_numba" in told.stdout
    numba = importlib.util.find_spec("numba") is not None
    assert ("set NUMBA_ENABLE_CUDASIM=1" if numba else "the package numba is not installed") in told.stdout
    assert told.returncode == 1 and "BackendUnavailable: no requested backend can run this call" in told.stderr
    assert "no: its kernels are machine code of a GPU: move the tensors there" in told.stderr


def test_every_file_of_the_packages_is_installed(site: Path) -> None:
    for name in PACKAGES:
        sources = [p for p in (EXAMPLES / name).glob("kernels_*/*") if p.suffix in {".py", ".cu", ".cpp"}]
        assert sources and all((site / "packages" / p.parent.name / p.name).is_file() for p in sources)


NUMBA = """
import sys, types, numpy, torch
numba = sys.modules["numba"] = types.ModuleType("numba")
numba.config, numba.cuda = types.SimpleNamespace(ENABLE_CUDASIM=0), types.SimpleNamespace(is_available=lambda: True)
numba.__spec__ = types.SimpleNamespace()
from kernels_in_numba import BACKEND
numpy.row_stack, numpy.__version__ = 0, "2.4.9"
print(BACKEND.unavailable(torch.device("cuda")))
del numpy.row_stack
numpy.__version__ = "2.5.2"
print(BACKEND.unavailable(torch.device("cuda")))
"""


def test_numba_beside_a_numpy_that_it_does_not_know_says_so(site: Path) -> None:
    """With a module in its place, as the lock has no numba."""
    told = run(site, "-c", NUMBA, path=search(site))
    refusal = "numba-cuda starts no kernel beside numpy 2.5.2: install numpy below 2.5"
    assert told.stdout.splitlines() == ["None", refusal], told.stdout + told.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="numba's simulator and its GPU exclude each other")
def test_numbas_kernels_are_right_on_its_simulator(site: Path) -> None:
    pytest.importorskip("numba", reason="numba is no package of the lock")
    command = ["-m", "kernelmux.conformance", "--op", "rms_norm", "--backend", "numba", "--device", "cpu", "-n", "1"]
    command += ["--tier", "smoke", "--check", "accuracy", "exact", "--in-process", "numba"]
    told = run(site, *command, path=search(site), NUMBA_ENABLE_CUDASIM="1")
    assert told.returncode == 0, told.stdout + told.stderr
