"""What the rows ran on: names and versions for reports, and the file name of a GPU."""

from __future__ import annotations

import datetime
import platform
import re
import subprocess
from importlib import metadata
from typing import Any

import torch

PACKAGES = ("torch", "triton", "cupy-cuda13x", "cupy-cuda12x", "numpy", "pytest-benchmark")


def slug(name: str) -> str:
    """NVIDIA H200 -> nvidia_h200."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def describe(device: str) -> dict[str, Any]:
    """The device, its driver, and the versions of what compiled and launched."""
    facts: dict[str, Any] = {"python": platform.python_version(), "platform": platform.platform(terse=True)}
    facts["versions"] = {name: version for name in PACKAGES if (version := _version(name))}
    return facts | (_gpu() if device == "cuda" else {"name": _cpu(), "kind": "cpu", "threads": torch.get_num_threads()})


def _gpu() -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "name": properties.name,
        "kind": "cuda",
        "capability": f"{properties.major}.{properties.minor}",
        "processors": properties.multi_processor_count,
        "memory": properties.total_memory,
        "l2": int(getattr(properties, "L2_cache_size", 0)),
        "cuda": torch.version.cuda,
        **_smi(),
    }


def _smi() -> dict[str, str]:
    """Driver, clock and power as nvidia-smi reports them; nothing where it is missing."""
    fields = ("driver_version", "clocks.sm", "power.limit")
    try:
        command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader", "-i", "0"]
        line = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return {}
    return dict(zip(("driver", "clock", "power_limit"), (part.strip() for part in line.split(",")), strict=False))


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def today() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
