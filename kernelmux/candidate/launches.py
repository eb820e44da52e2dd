"""Kernels of a candidate on CPU tensors: compiled in its process, run by the emulator in the suite's.

The candidate's side (`emulate`) makes Triton, and our run time for CUDA, send each launch: the text of the PTX, what is
launched, and the memory of its arguments. The suite's side (`run`) knows what ran, and judges it as it judges its own.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import re
import threading
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
import torch

from kernelmux.candidate import memory
from kernelmux.candidate.channel import Channel

ALIGNED = 4096  # bytes: the memory of an argument keeps its place within so many
_one_at_a_time = threading.Lock()  # calls may come from several threads


# --- in the process of the candidate ------------------------------------------------------------------------------


def emulate(channel: Channel, regions: dict[int, memory.Region]) -> None:
    """From now on every launch in this process is sent. regions: the memory of inputs, which need not be sent."""
    from kernelmux import emulator

    known: dict[str, RemoteModule] = {}

    def make(ptx: str) -> RemoteModule:
        return known.get(ptx) or known.setdefault(ptx, RemoteModule(ptx, channel, regions, len(known)))

    emulator.load_by(make)
    if found := driver():
        importlib.import_module("kernelmux.emulator").triton_cache.keep_plainly()
        found.activate()


def driver() -> Any:
    """What makes Triton launch on the emulator; None without Triton. The first import takes half a second."""
    try:
        from kernelmux.emulator import triton_driver
    except ImportError:
        return None
    return triton_driver


def prepare() -> None:
    """What the first compilation of a kernel by Triton would do before it: half a second."""
    if driver() is None:
        return
    with suppress(ImportError, AttributeError):
        importlib.import_module("triton.experimental.gluon")
        importlib.import_module("triton.runtime.cache").triton_key()


class RemoteModule:
    """A module of PTX whose kernels run elsewhere, and is read there alone. number: which it is, in this process."""

    def __init__(self, ptx: str, channel: Channel, regions: dict[int, memory.Region], number: int) -> None:
        self.ptx, self.channel, self.regions, self.number = ptx, channel, regions, number
        self.sent = False

    def kernel(self, name: str) -> RemoteKernel:
        return RemoteKernel(self, name)


class RemoteKernel:
    """An entry point that runs elsewhere; what launchers use of `EntryKernel`."""

    def __init__(self, module: RemoteModule, name: str) -> None:
        self.module, self.name = module, name
        head = re.search(rf"\.entry\s+{re.escape(name)}\s*\(([^)]*)\)", module.ptx)
        self.parameters = re.findall(r"\.param\b", head[1]) if head else []

    def launch(
        self,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Sequence[Any],
        names: Sequence[str] = (),
        shared: int = 0,
        cluster: Sequence[int] | None = None,
    ) -> None:
        """Send it and wait until it has run; RuntimeError with the emulator's text if it has not."""
        from kernelmux.emulator import settings

        memories = Memories(self.module.regions)
        told = {
            "launch": self.name,
            "module": self.module.number,
            "grid": _triple(grid),
            "block": _triple(block),
            "arguments": [encoded(one, memories) for one in args],
            "names": list(names),
            "shared": shared,
            "cluster": None if cluster is None else list(cluster),
            "compiled_scratch": settings.current_compiled_scratch(),
            "memories": memories.told,
        }
        with _one_at_a_time:
            told["ptx"] = None if self.module.sent else self.module.ptx
            self.module.sent = True
            self.module.channel.send(told, [r.file for r in memories.regions])
            answer, _ = self.module.channel.receive()
        memories.take_back()
        if answer["failed"]:
            raise RuntimeError(answer["failed"])


class Memories:
    """The memory behind the arguments of a launch. regions: copies that are sent, in the order of their files."""

    def __init__(self, shared: dict[int, memory.Region]) -> None:
        self.shared = {region.address: number for number, region in shared.items()}
        self.told: list[dict[str, Any]] = []
        self.regions: list[memory.Region] = []
        self._known: dict[int, int] = {}
        self._copied: list[tuple[np.ndarray, memory.Region, int]] = []

    def number(self, data: np.ndarray) -> int:
        """The place of a memory among those of the launch."""
        address = data.__array_interface__["data"][0]
        if address not in self._known:
            self._known[address] = len(self.told)
            if address in self.shared:
                self.told.append({"region": self.shared[address]})
            else:
                begin = address % ALIGNED
                made = memory.region(begin + data.size)
                memory.fill(made.bytes[begin:], data, fresh=True)
                self.told.append({"file": len(self.regions), "begin": begin, "bytes": data.size})
                self.regions.append(made)
                self._copied.append((data, made, begin))
        return self._known[address]

    def take_back(self) -> None:
        """What the launch has written, where the candidate has it."""
        for own, sent, begin in self._copied:
            for part in memory.changed(sent, own, begin):
                own[part] = sent.bytes[begin:][part]
        for region in self.regions:
            region.close()


def encoded(value: Any, memories: Memories) -> dict[str, Any]:
    """An argument of a launch as JSON."""
    if value is None:
        return {"null": True}
    if isinstance(value, bytes | bytearray):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, np.generic):
        return {"scalar": value.dtype.str, "bytes": value.tobytes().hex()}
    if hasattr(value, "encode") and hasattr(value, "tensor"):
        told = {n: getattr(value, n) for n in ("swizzle", "fill", "element")}
        told |= {n: list(getattr(value, n)) for n in ("box", "shape", "strides")}
        if value.pixels is not None:
            told["pixels"] = {n: _plain(v) for n, v in vars(value.pixels).items()}
        return {"map": told, "of": encoded(value.tensor, memories)}
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if isinstance(value, torch.Tensor):
        return {"tensor": memories.number(memory.held(value.untyped_storage())), **memory.described(value)}
    raise TypeError(
        f"an argument of a launch: expected a tensor, None, bytes or a numpy scalar, got {type(value).__name__}"
    )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _triple(sizes: int | Sequence[int]) -> list[int]:
    found = [sizes] if isinstance(sizes, int) else [int(n) for n in sizes]
    return [*found, 1, 1][:3]


# --- in the process of the suite ----------------------------------------------------------------------------------


class Refused(Exception):
    """A launch that is none: a description that does not fit."""


def run(told: dict[str, Any], files: Sequence[int], regions: dict[int, memory.Region], modules: dict[int, str]) -> None:
    """Run what was sent, under the checks that are on; EmulatorError for what the emulator finds. modules: texts so far."""
    from kernelmux import emulator
    from kernelmux.emulator import settings

    number = told["module"]
    if told["ptx"] is not None:
        modules[number] = str(told["ptx"])
    storages = [_storage(one, files, regions) for one in told["memories"]]
    arguments = [decoded(one, storages) for one in told["arguments"]]
    kernel = emulator.load(modules[number]).kernel(told["launch"])
    grid, block = tuple(map(int, told["grid"])), tuple(map(int, told["block"]))
    cluster = None if told["cluster"] is None else tuple(map(int, told["cluster"]))
    names = [str(name) for name in told["names"]]
    # Its word; what stores of a sum may differ by there is a remark.
    with settings.compiled_scratch() if told["compiled_scratch"] is True else nullcontext():
        kernel.launch(grid, block, arguments, names=names, shared=int(told["shared"]), cluster=cluster)


def _storage(told: dict[str, Any], files: Sequence[int], regions: dict[int, memory.Region]) -> torch.UntypedStorage:
    """The memory of an argument, which both sides have."""
    if "region" in told:
        return memory.storage_of(regions[told["region"]].bytes)
    file, begin, size = files[told["file"]], int(told["begin"]), int(told["bytes"])
    if begin < 0 or size < 0 or os.fstat(file).st_size < begin + size:
        raise Refused(f"{size} bytes of memory from {begin} on in a file of {os.fstat(file).st_size}")
    if memory.SEALED:
        sealed = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        if fcntl.fcntl(file, fcntl.F_GET_SEALS) & sealed != sealed:
            raise Refused("memory that can shrink")
    return memory.storage_of(memory.Region(file, begin + size).bytes[begin:])  # the map has the file for itself


def decoded(told: dict[str, Any], storages: Sequence[torch.UntypedStorage]) -> Any:
    """The argument that `encoded` made JSON of."""
    if "null" in told:
        return None
    if "scalar" in told:
        dtype = np.dtype(told["scalar"])
        if dtype.kind not in "fiub":
            raise Refused(f"a scalar of {dtype}")
        return np.frombuffer(bytes.fromhex(told["bytes"]), dtype)[0]
    if "bytes" in told:
        return bytes.fromhex(told["bytes"])
    if "map" in told:
        return _tensor_map(told["map"], decoded(told["of"], storages))
    return memory.tensor(storages[told["tensor"]], told)


def _tensor_map(told: dict[str, Any], x: torch.Tensor) -> Any:
    from kernelmux import emulator

    more = {"fill": str(told["fill"]), "element": str(told["element"])}
    if pixels := told.get("pixels"):  # innermost first there
        lower, upper, steps = (tuple(map(int, pixels[n]))[::-1] for n in ("lower", "upper", "steps"))
        sizes = int(pixels["channels"]), int(pixels["count"])
        return emulator.Im2colMap(x, lower, upper, *sizes, int(told["swizzle"]), steps=steps, **more)
    shape, strides, box = (tuple(map(int, told[n])) for n in ("shape", "strides", "box"))
    return emulator.TensorMap(x, box, int(told["swizzle"]), shape=shape, strides=strides, **more)
