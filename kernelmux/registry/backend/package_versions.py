"""The packages that kernels are compiled and launched with: who brings them, their versions, and which are missing."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Sequence
from importlib import metadata

import torch

from kernelmux.registry.backend import lookup as registered

# Import name -> the distributions that may bring it; a wheel of CuPy is named after its CUDA.
PACKAGES = {
    "torch": ("torch",),
    "triton": ("triton",),
    "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
    "numpy": ("numpy",),
    "nvidia": ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"),
}

# The oldest and the newest minor version that the CPU suites have passed on (`nox -s torch_versions`); of transformers,
# whose modules `kernelmux.patch` swaps, those that the tests of kernelmux.nn have passed on.
TESTED = {"torch": ("2.11", "2.15"), "transformers": ("5.23", "5.24")}


def version(distribution: str) -> str:
    """The version of a distribution; "" if it is not installed, or tells none."""
    try:
        return metadata.version(distribution) or ""
    except metadata.PackageNotFoundError:
        return ""


def untested(distribution: str) -> str:
    """What to say of a version above those that were tested; "" for one of these."""
    if distribution not in TESTED or not (found := re.match(r"(\d+)\.(\d+)", version(distribution))):
        return ""
    oldest, newest = TESTED[distribution]
    above = tuple(map(int, found.groups())) > tuple(map(int, newest.split(".")))
    return f"newer than what was tested, {oldest} to {newest}: it may work" if above else ""


class NotInstalled(str):
    """A reason of `Backend.unavailable` that the user can mend: a package is not installed, and pip has it for this system.

    Any other reason says that the backend does not fit the device. The test suites fail for this one.
    """

    __slots__ = ()


def not_installed(package: str, install: str, systems: Sequence[str] = ("linux", "win32", "darwin")) -> str | None:
    """What `Backend.unavailable` returns for a package that cannot be imported; None if it can.

    install: what pip is to install. systems: values of `sys.platform` for which there is such a package.
    """
    if importlib.util.find_spec(package) is not None:
        return None
    if sys.platform not in systems:
        return f"the package {package} is not installed, and there is none for {sys.platform}"
    return NotInstalled(f"the package {package} is not installed: pip install {install}")


def missing_packages(device: torch.device, names: Sequence[str] = ()) -> dict[str, str]:
    """Backend name -> the package that it lacks to run on `device`, and what to install, in one line.

    Empty if there is none, or no such device. names: backends or variants ("cuda", "cuda/tiled"); all backends if empty.
    """
    if device.type == "cuda" and not _has_nvidia_gpu():
        return {}
    wanted = dict.fromkeys(registered.split(name)[0] for name in names) or registered.backends()
    reasons = {name: registered.unavailable(name, device) for name in wanted}
    return {name: " ".join(found.split()) for name, found in reasons.items() if isinstance(found, NotInstalled)}


def _has_nvidia_gpu() -> bool:
    return torch.version.hip is None and torch.cuda.is_available()
