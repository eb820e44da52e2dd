"""The GPUs of this machine that this process may use, by NVML: no context on a GPU is made, and torch is not imported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kernelmux.registry.util.files import file_stem

VARIABLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class VisibleGpu:
    """uuid: as CUDA_VISIBLE_DEVICES takes it. memory: bytes. capability: (9, 0), or (0, 0) if unknown."""

    uuid: str
    name: str
    memory: int
    driver: str
    capability: tuple[int, int] = (0, 0)

    @property
    def card(self) -> str:
        """The kind of card, "nvidia_h200"."""
        return file_stem(self.name)

    @property
    def emulated(self) -> dict[str, str]:
        """The variable by which the emulator of a process without a GPU stands for this one; {} for an unknown one."""
        from kernelmux.registry.util import cards  # imports torch, which most runs do without here

        if self.capability not in cards.LIMITS:
            return {}
        known = cards.by_device_name(self.name, self.capability)
        return {cards.VARIABLE: self.name if known else "{}.{}".format(*self.capability)}


def visible() -> list[VisibleGpu]:
    """The GPUs, in the order of CUDA_VISIBLE_DEVICES where that is set; [] without a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # of the import, of a library that is not there, of a driver that does not answer
        return []
    try:
        return [_gpu(pynvml, handle) for handle in _handles(pynvml)]
    finally:
        pynvml.nvmlShutdown()


def _handles(nvml: Any) -> Iterator[Any]:
    named = os.environ.get(VARIABLE)
    names = [str(i) for i in range(nvml.nvmlDeviceGetCount())] if named is None else named.split(",")
    for name in map(str.strip, names):
        try:
            number = name.isdigit()
            yield nvml.nvmlDeviceGetHandleByIndex(int(name)) if number else nvml.nvmlDeviceGetHandleByUUID(name)
        except nvml.NVMLError:  # CUDA, too, takes no more behind a name that it does not know
            return


def _gpu(nvml: Any, handle: Any) -> VisibleGpu:
    uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
    try:
        capability = tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle))
    except nvml.NVMLError:  # a slice of a GPU need not tell it
        capability = (0, 0)
    return VisibleGpu(
        uuid, name, nvml.nvmlDeviceGetMemoryInfo(handle).total, nvml.nvmlSystemGetDriverVersion(), capability
    )
