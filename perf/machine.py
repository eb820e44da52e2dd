"""What the rows ran on: names and versions for reports."""

from __future__ import annotations

import datetime
import platform
import subprocess
from dataclasses import dataclass, field, replace

import torch

from kernelmux.perf.json_form import SPARSE
from kernelmux.registry.packages import version

PACKAGES = (
    "torch", "triton", "cupy-cuda13x", "cupy-cuda12x", "numpy", "pytest-benchmark",
    "nvidia-cublas", "nvidia-cudnn-cu13", "flash-attn-4", "quack-kernels", "liger-kernel", "flag-gems",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A device, its driver, and the versions of what compiled and launched.

    kind: "cuda" or "cpu". memory, l2: bytes. processors: multiprocessors of a GPU; threads: of torch on a CPU.
    """

    python: str = field(default="", metadata=SPARSE)
    platform: str = field(default="", metadata=SPARSE)
    versions: dict[str, str] = field(default_factory=dict)
    name: str = "unknown"
    kind: str = field(default="", metadata=SPARSE)
    capability: str = field(default="", metadata=SPARSE)
    processors: int | None = field(default=None, metadata=SPARSE)
    memory: int | None = field(default=None, metadata=SPARSE)
    l2: int | None = field(default=None, metadata=SPARSE)
    cuda: str | None = field(default=None, metadata=SPARSE)
    driver: str = field(default="", metadata=SPARSE)
    clock: str = field(default="", metadata=SPARSE)
    power_limit: str = field(default="", metadata=SPARSE)
    threads: int | None = field(default=None, metadata=SPARSE)


def describe(device: str) -> Machine:
    """This machine: its GPU for "cuda", else its processor."""
    made = _gpu() if device == "cuda" else Machine(name=_cpu(), kind="cpu", threads=torch.get_num_threads())
    versions = {name: found for name in PACKAGES if (found := version(name))}
    return replace(made, python=platform.python_version(), platform=platform.platform(terse=True), versions=versions)


def _gpu() -> Machine:
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    told = _smi()
    return Machine(
        name=properties.name,
        kind="cuda",
        capability=f"{properties.major}.{properties.minor}",
        processors=properties.multi_processor_count,
        memory=properties.total_memory,
        l2=int(getattr(properties, "L2_cache_size", 0)),
        cuda=torch.version.cuda,
        driver=told.get("driver", ""),
        clock=told.get("clock", ""),
        power_limit=told.get("power_limit", ""),
    )


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


def today() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
