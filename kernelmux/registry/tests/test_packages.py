"""Which backends could run on a device and lack a package for it, and what the user is told to install."""

import sys

import pytest
import torch

from kernelmux.registry import errors
from kernelmux.registry.backend import package_versions
from kernelmux.registry.backend.description import Backend
from kernelmux.registry.tests import made_up

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
LACKS = "the package not_there is not installed: pip install not-there"


def theirs(device: torch.device) -> str | None:
    """A backend from elsewhere that needs a package on a GPU only."""
    return (
        package_versions.not_installed("not_there", "not-there") if device.type == "cuda" else "its kernels need a GPU"
    )


BACKENDS = {
    **made_up.BACKENDS,
    "theirs": (Backend("theirs", "made up", 5, theirs), {}),
    "everywhere": (
        Backend("everywhere", "made up", 5, lambda d: package_versions.not_installed("not_there", "not-there")),
        {},
    ),
}


@pytest.fixture
def gpu(monkeypatch):
    """torch finds an NVIDIA GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "hip", None)


def test_a_backend_that_lacks_a_package_is_named_with_what_to_install(gpu, monkeypatch):
    made_up.install(monkeypatch, BACKENDS)
    assert package_versions.missing_packages(CUDA) == {"theirs": LACKS, "everywhere": LACKS}
    assert package_versions.missing_packages(CPU) == {"everywhere": LACKS}


def test_only_the_backends_that_are_asked_for_are_looked_at(gpu, monkeypatch):
    made_up.install(monkeypatch, BACKENDS)
    assert package_versions.missing_packages(CUDA, ["plain", "theirs/rows"]) == {"theirs": LACKS}
    assert package_versions.missing_packages(CUDA, ["plain"]) == {}
    with pytest.raises(errors.UnknownName, match="thiers"):
        package_versions.missing_packages(CUDA, ["thiers"])


def test_a_backend_that_does_not_fit_the_device_lacks_nothing(gpu, monkeypatch):
    made_up.install(monkeypatch, made_up.BACKENDS)  # "closed" says in its own words what it lacks
    assert package_versions.missing_packages(CUDA) == {}


def test_without_an_nvidia_gpu_nothing_is_missing_for_one(gpu, monkeypatch):
    made_up.install(monkeypatch, BACKENDS)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert package_versions.missing_packages(CUDA) == {}
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert package_versions.missing_packages(CUDA) == {}


def test_a_system_for_which_there_is_no_such_package_lacks_none(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    reason = package_versions.not_installed("not_there", "not-there", ("linux",))
    assert reason == "the package not_there is not installed, and there is none for darwin"
    assert not isinstance(reason, package_versions.NotInstalled)
    assert isinstance(
        package_versions.not_installed("not_there", "not-there", ("darwin",)), package_versions.NotInstalled
    )


def test_a_package_that_is_there_is_not_missing():
    assert package_versions.not_installed("numpy", "numpy") is None


OURS = """
import torch
from kernelmux.registry.backend import package_versions
{0}
for name, lack in package_versions.missing_packages(torch.device("{1}")).items():
    print(f"{{name}}: {{lack}}")
"""
ON_A_GPU = 'torch.cuda.is_available, torch.version.hip, torch.version.cuda = (lambda: True), None, "{0}"'


@pytest.mark.parametrize(("built", "cupy"), [("13.0", "cupy-cuda13x"), ("12.8", "cupy-cuda12x")])
def test_on_a_gpu_without_cupy_and_triton_both_are_named_for_the_cuda_of_torch(built, cupy):
    code = made_up.without("cupy", "triton") + OURS.format(ON_A_GPU.format(built), "cuda")
    found = made_up.python(code)
    assert found.stdout.splitlines() == [
        f"cuda: the package cupy is not installed: pip install {cupy}",
        "triton: the package triton is not installed: pip install triton",
    ], found.stderr


def test_without_a_gpu_the_packages_of_the_emulation_are_named():
    code = made_up.without("triton", "nvidia") + OURS.format("", "cpu")
    found = made_up.python(code, CUDA_HOME="/nowhere", CUDA_PATH="/nowhere")
    cuda, triton = found.stdout.splitlines()
    assert cuda.startswith("cuda: ") and "pip install nvidia-cuda-nvrtc" in cuda
    assert triton == "triton: the package triton is not installed: pip install triton"


@pytest.mark.parametrize(
    ("found", "said"),
    [("2.11.0", False), ("2.15.3+cu132", False), ("2.16.0", True), ("3.0.0a1", True), ("", False), ("unknown", False)],
)
def test_a_torch_above_the_range_that_was_tested_is_said_to_be_untested(found, said, monkeypatch):
    monkeypatch.setitem(package_versions.TESTED, "torch", ("2.11", "2.15"))
    monkeypatch.setattr(package_versions, "version", lambda name: found)
    assert package_versions.untested("torch") == (
        "newer than what was tested, 2.11 to 2.15: it may work" if said else ""
    )
    assert package_versions.untested("numpy") == ""
