"""What a process says of where it ran an item: it goes with each row, for the driver may be on another machine."""

from __future__ import annotations

import importlib.util
import platform
from functools import cache
from typing import Any

import torch

from kernelmux.conformance.options import Options
from kernelmux.registry.backend.package_versions import missing_packages, version
from kernelmux.registry.conditions import sm
from kernelmux.registry.errors import ArgumentError

PACKAGES = ("torch", "triton", "cupy", "cupy-cuda13x", "numpy", "nvidia-cuda-nvrtc")


def versions() -> dict[str, str]:
    """Versions of what is installed of the packages that matter."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        if importlib.util.find_spec(name.split("-")[0]) is not None or name.startswith("nvidia"):
            found[name] = version(name)
    return {name: told for name, told in found.items() if told}


@cache
def facts(options: Options) -> dict[str, Any]:
    """gpu: its name; capability ("sm_90"); versions; missing: backend -> what to install. {} of a CPU.

    ArgumentError where the options ask for a GPU and this process has none.
    """
    if options.device != "cuda":
        return {}
    if not torch.cuda.is_available():
        raise ArgumentError(f"--device cuda: torch {torch.__version__} sees no GPU in this process")
    found = {"gpu": torch.cuda.get_device_name(options.where), "capability": sm(torch.cuda.get_device_capability())}
    lacking = missing_packages(options.where)
    return {**found, "versions": versions(), **({"missing": lacking} if lacking else {})}
