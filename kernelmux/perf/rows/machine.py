"""What the rows ran on: names and versions for reports."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from kernelmux.perf.rows.codec import SPARSE
from kernelmux.registry.backend import device_tables
from kernelmux.registry.backend.package_versions import not_installed, version

PACKAGES = (
    "torch",
    "triton",
    "cupy-cuda13x",
    "cupy-cuda12x",
    "numpy",
    "pytest-benchmark",
    "nvidia-cublas",
    "nvidia-cudnn-cu13",
    "nvidia-cudnn-frontend",
    "sgl-deep-gemm",
    "fla-core",
    "flash-attn-4",
    "quack-kernels",
    "liger-kernel",
    "flag-gems",
)


@dataclass(frozen=True, kw_only=True)
class MeasuringMachine:
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


def found_with(machine: MeasuringMachine) -> dict[str, str]:
    """What tables of the registry keep of the packages and the driver of a machine."""
    return device_tables.versions_of(machine.versions, machine.driver)


def describe(device: str) -> MeasuringMachine:
    """This machine: its GPU for "cuda", else its processor."""
    made = _gpu() if device == "cuda" else MeasuringMachine(name=_cpu(), kind="cpu", threads=torch.get_num_threads())
    versions = {name: found for name in PACKAGES if (found := version(name))}
    return replace(made, python=platform.python_version(), platform=platform.platform(terse=True), versions=versions)


def _gpu() -> MeasuringMachine:
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    told = _nvml_facts(str(properties.uuid))
    return MeasuringMachine(
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


def unknown(device: str) -> str | None:
    """What a record of this device would lack, and what to install; None if nothing is missing."""
    lack = not_installed("pynvml", "nvidia-ml-py") if device == "cuda" and torch.version.hip is None else None
    return lack and f"the driver, the clock and the power limit will not be recorded: {lack}"


def _nvml_facts(uuid: str) -> dict[str, str]:
    """Driver, clock and power limit, as NVML has them: what it does not say is left out."""
    try:
        import pynvml
    except ImportError:
        return {}
    ask: dict[str, Callable[[], str]] = {
        "driver": lambda: pynvml.nvmlSystemGetDriverVersion(),
        "clock": lambda: f"{pynvml.nvmlDeviceGetClockInfo(_handle(pynvml, uuid), pynvml.NVML_CLOCK_SM)} MHz",
        "power_limit": lambda: f"{pynvml.nvmlDeviceGetPowerManagementLimit(_handle(pynvml, uuid)) / 1000:.2f} W",
    }
    found: dict[str, str] = {}
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        for name, answer in ask.items():
            with suppress(pynvml.NVMLError):
                found[name] = answer()
        pynvml.nvmlShutdown()
    return found


def _handle(nvml: Any, uuid: str) -> Any:
    """NVML's handle of a GPU, whose number there is not torch's; of a slice (MIG) the GPU that it is a part of."""
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except nvml.NVMLError:
        return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}"))


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def today() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
