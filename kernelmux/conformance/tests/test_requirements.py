"""What pip installs for a user, as the package index answers today: one CUDA, whose parts fit, and torch left alone."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import kernelmux
from kernelmux.registry.backend.package_versions import PACKAGES, TESTED

TOP = Path(__file__).parents[3]
LOCK = TOP / "bazel/requirements.lock"
PLATFORMS = pytest.mark.parametrize("platform", ["x86_64-manylinux_2_28", "aarch64-manylinux_2_28"])
UNREACHED = r"error sending request|dns error|Failed to fetch|operation timed out|Could not connect"
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]

Versions = dict[str, str]


def uv() -> list[str]:
    """The command of uv, which resolves for machines other than this one."""
    if importlib.util.find_spec("uv") is not None:
        return [sys.executable, "-m", "uv"]
    if found := shutil.which("uv"):
        return [found]
    pytest.skip("uv is not installed: bazel/requirements.lock has it")


@cache
def resolved(platform: str, *requirements: str) -> Versions:
    """Distribution -> version of all that these requirements bring on a machine with Python 3.12."""
    options = ("--no-header", "--no-annotate", "--no-python-downloads", "--python-version", "3.12")
    command = [*uv(), "pip", "compile", "-", "--python-platform", platform, *options]
    done = subprocess.run(command, input="\n".join(requirements), capture_output=True, text=True, check=False)
    if done.returncode and re.search(UNREACHED, done.stderr):
        pytest.skip(f"the package index cannot be reached: {done.stderr.strip().splitlines()[-1]}")
    assert not done.returncode, done.stderr
    return dict(line.split("==") for line in done.stdout.split() if "==" in line)


def locked() -> list[str]:
    return [line for line in LOCK.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]


def pin(name: str) -> str:
    """The version of a package that the lock names exactly."""
    return next(line.partition("==")[2].partition(";")[0] for line in locked() if line.startswith(f"{name}=="))


def minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def parts(found: Versions, suffix: str = "") -> Versions:
    """NVRTC and the headers among what was found, as the names of their packages without those of the makers."""
    names = {part: f"nvidia-cuda-{part}{suffix}" for part in ("nvrtc", "runtime", "crt", "cccl")}
    return {part: found[name] for part, name in names.items() if name in found}


def check_one_cuda(platform: str, found: Versions, headers: str) -> None:
    """One NVRTC, and the headers of its release."""
    assert [name for name in found if "nvrtc" in name] == ["nvidia-cuda-nvrtc"]
    assert set(parts(found)) == {"nvrtc", "runtime", "crt", "cccl"}
    assert minor(found["cuda-toolkit"]) == minor(found["nvidia-cuda-nvrtc"])
    assert {minor(parts(found)[part]) for part in ("nvrtc", "runtime", "crt")} == {minor(found["cuda-toolkit"])}
    release = resolved(platform, f"cuda-toolkit[{headers}]=={found['cuda-toolkit']}")
    assert parts(found) == parts(release)  # CCCL has numbers of its own


@PLATFORMS
def test_the_lock_gives_a_gpu_user_cupy_and_the_cuda_that_torch_demands(platform: str) -> None:
    found, torch = resolved(platform, *locked()), resolved(platform, f"torch=={pin('torch')}")
    for name in ("cuda-toolkit", "nvidia-cudnn-cu13", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "triton", "torch"):
        assert found[name] == torch[name], f"{name}: torch alone brings {torch[name]}, the lock {found[name]}"
    assert found["cupy-cuda13x"] == pin("cupy-cuda13x") and "cupy-cuda12x" not in found
    check_one_cuda(platform, found, "cccl,crt,cudart,nvrtc")


@PLATFORMS
def test_without_cupy_and_headers_the_check_would_say_so(platform: str) -> None:
    """The law above has teeth: the newest of each package by itself does not fit torch's NVRTC."""
    apart = ("nvidia-cuda-crt", "nvidia-cuda-cccl")
    found = resolved(platform, f"torch=={pin('torch')}", *apart)
    with pytest.raises(AssertionError):
        check_one_cuda(platform, found, "cccl,crt,cudart,nvrtc")


@PLATFORMS
@pytest.mark.parametrize("extra", ["cuda", "emulator"])
def test_installing_a_checkout_keeps_the_newest_torch(platform: str, extra: str) -> None:
    found, alone = resolved(platform, *PROJECT["dependencies"], *EXTRAS[extra]), resolved(platform, "torch")
    assert {name: found[name] for name in ("torch", "triton")} == {name: alone[name] for name in ("torch", "triton")}
    assert ("cupy-cuda13x" in found) == (extra == "cuda")
    check_one_cuda(platform, found, "cccl,crt,cudart,nvrtc")


@PLATFORMS
def test_the_extra_for_cuda_12_has_parts_of_cuda_12_alone(platform: str) -> None:
    """But for torch, whose builds for CUDA 12 are not on this index. There is no package of crt's headers alone."""
    found = resolved(platform, *EXTRAS["cuda12"])
    assert "cupy-cuda12x" in found and "cupy-cuda13x" not in found
    mixed = [name for name in found if name.startswith("nvidia-") and not name.endswith("-cu12")]
    assert not mixed and [name for name in found if "nvrtc" in name] == ["nvidia-cuda-nvrtc-cu12"]
    assert {minor(version) for version in parts(found, "-cu12").values()} == {minor(found["cuda-toolkit"])}
    assert set(parts(found, "-cu12")) == {"nvrtc", "runtime", "cccl"}


def test_the_packages_that_doctor_names_are_those_of_the_lock() -> None:
    names = {re.split(r"[\[<>=;]", line)[0] for line in locked()}
    assert {"torch", "triton", "cupy-cuda13x", "numpy"} <= names
    assert "cupy-cuda13x" in PACKAGES["cupy"] and "cupy-cuda12x" in PACKAGES["cupy"]


COMPILE = """
import cupy
from cupy._core.core import assemble_cupy_compiler_options
from cupy.cuda import compiler

print(cupy._environment.get_cuda_path())
options = assemble_cupy_compiler_options(("-std=c++17",))
headers = ("cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "mma.h", "cuda/barrier")
source = "".join(f"#include <{header}>\\n" for header in headers)
source += 'extern "C" __global__ void kernel(__half* x) { x[0] = 1; }'
code, _ = compiler._NVRTCProgram(source, "kernel.cu", method="cubin").compile((*options, "-arch=sm_90a"))
print(code[:4] == b"\\x7fELF", cupy.cuda.nvrtc.getVersion())
"""


def test_cupy_compiles_with_the_nvrtc_and_the_headers_of_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """No CUDA toolkit, no driver: machine code for an H100 with what our kernels include, wmma and libcu++."""
    pytest.importorskip("cupy", reason="bazel/requirements.lock has it")
    for name in ("CUDA_PATH", "CUDA_HOME", "LD_LIBRARY_PATH", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    folder, code = done.stdout.splitlines()
    assert "site-packages/nvidia/cu13" in folder and code.startswith("True (13,")


@pytest.fixture(scope="session")
def sessions() -> ModuleType:
    """The noxfile as a module, read once in a process: nox warns of a session that is registered twice."""
    pytest.importorskip("nox", reason="bazel/requirements.lock has it")
    spec = importlib.util.spec_from_file_location("noxfile_of_the_checkout", TOP / "noxfile.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_a_session_installs_what_the_lock_says(sessions: ModuleType) -> None:
    assert list(sessions.locked().values()) == locked()
    assert sessions.locked()["ruff"] == f"ruff=={pin('ruff')}"


def test_the_versions_of_torch_that_are_tested_are_those_that_doctor_knows(sessions: ModuleType) -> None:
    oldest, newest = sessions.TORCH
    assert (minor(oldest), minor(newest)) == TESTED["torch"]
    (torch,) = (name for name in PROJECT["dependencies"] if name.startswith("torch"))
    assert torch == f"torch>={minor(oldest)}", "no upper bound: an install takes no torch away"
    assert minor(oldest) <= minor(pin("torch")) <= minor(newest)


def test_version_and_tag_are_one(sessions: ModuleType) -> None:
    assert PROJECT["version"] == kernelmux.__version__
    assert sessions.compared("0.1.0", ["v0.1.0", "nightly"]) == "version 0.1.0, git tag v0.1.0"
    assert sessions.compared("0.1.0", ["0.1.0"]) == "version 0.1.0, git tag 0.1.0"
    assert sessions.compared("0.1.0", ["nightly"]) == "version 0.1.0, no git tag at this commit"
    for tags in (["v0.1.1"], ["v0.1.0", "v0.2"], ["0.1.0rc1"]):
        with pytest.raises(ValueError, match=r"expected the git tag v0\.1\.0, as pyproject.toml says, got "):
            sessions.compared("0.1.0", tags)
