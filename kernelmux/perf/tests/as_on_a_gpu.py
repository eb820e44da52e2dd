"""What a process with an H200 would find of what a process without one has compiled: `as_on_a_gpu OP ...`, as JSON.

The same calls are made with tensors that say they are on a GPU, a Triton driver that answers as its own does there, and
code that is looked for as it is there, but not loaded: first with empty caches, then behind `ahead`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import driver

from kernelmux import emulator
from kernelmux.backends.cuda._launch import launch_cuda, runtime, tensor_map
from kernelmux.backends.triton._launch import launch
from kernelmux.backends.triton._launch.packed import PackedLaunch
from kernelmux.emulator import nvrtc
from kernelmux.perf.planning import plan
from kernelmux.perf.planning.plan import Row
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.perf.session import ahead
from kernelmux.registry import catalog, dtypes
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.util import cards
from kernelmux.warm import compiling

NAME = "NVIDIA H200"
TUNED = Row("matmul", "a=512x7168 b=7168x2048", "bf16", "triton", "by_shape")  # its configuration is on record
GPU = [1]  # the number of the GPU; the emulator is Triton's device 0


def nothing(*given: Any, **more: Any) -> None:
    """In place of a launch."""


class OnGpu(torch.Tensor):
    """A tensor without memory that says it is on the GPU."""

    is_cuda = True

    def get_device(self) -> int:
        return GPU[0]


class TritonThere(DriverBase):  # type: ignore[misc]
    """Triton's driver on an H200, which loads and launches nothing."""

    launcher_cls = staticmethod(lambda source, metadata: nothing)
    utils = SimpleNamespace(
        get_device_properties=lambda device: emulator.triton_driver.DEVICES["sm_90"],
        load_binary=lambda name, cubin, shared, device: (None, 0, 0, 0, 1024),
        unload_module=nothing,
    )

    def __init__(self) -> None:
        """Nothing of a GPU is asked."""

    is_active = classmethod(lambda cls: True)
    get_current_target = lambda self: GPUTarget("cuda", 90, 32)  # noqa: E731
    get_current_device = lambda self: GPU[0]  # noqa: E731
    get_current_stream = lambda self, device=None: 0  # noqa: E731
    get_active_torch_device = lambda self: torch.device("cuda", GPU[0])  # noqa: E731
    get_benchmarker = nothing
    map_python_to_cpp_type = lambda self, ty: ty  # noqa: E731


class CudaThere:
    """A CUDA function whose code is looked for and not loaded."""

    following = property(lambda self: self)

    def __init__(self, text: str, entry: str, options: Any, filename: str, folders: Any, index: int, of: Any) -> None:
        launch_cuda._module(text, options, filename, folders, index)

    launch = nothing


def rows(ops: list[str]) -> list[Row]:
    """One row of each variant, on the largest workload."""
    found = plan.rows(PerfOptions(ops=tuple(ops), device="cuda", elsewhere=True, quick=True))
    return [row for row in (TUNED, *found) if compiling.able(row.backend) and not row.problem]


def there(wanted: list[Row]) -> dict[str, list[int]]:
    """Call the rows on the GPU; how many kernels were asked for, and how many were not in the caches."""
    for name, place in (("TRITON_CACHE_DIR", "triton"), ("KERNELMUX_CACHE_DIR", "ours")):
        os.environ[name] = str(Path(HOME[0], place))
    emulator.cache_folder.cache_clear()
    nvrtc._memory.clear()
    hits: list[bool] = []
    knobs.compilation.listener = lambda **told: hits.append(told["cache_hit"])
    asked, compiled, compile_cubin, compile = list[Any](), list[Any](), nvrtc.compile_cubin, nvrtc._compile
    vars(nvrtc).update(compile_cubin=_noted(asked, compile_cubin), _compile=_noted(compiled, compile))
    before, available = driver._active, torch.cuda.is_available
    vars(torch.cuda)["is_available"] = lambda: True  # so that tuned configurations are read
    driver.set_active(TritonThere())
    try:
        for row in wanted:
            implementation = registered.variants(row.backend, row.op)[row.variant]
            case, dtype = catalog.spec(row.op).case(row.workload), dtypes.parse(row.dtype)
            call = catalog.spec(row.op).hypothetical(case, dtype, torch.device("cpu"), (9, 0))
            given = registered.laid_out(call, implementation)
            implementation.fn(*(_on_gpu(x) if isinstance(x, torch.Tensor) else x for x in given))
    finally:
        driver.set_active(before)
        vars(torch.cuda)["is_available"] = available
        knobs.compilation.listener = None
        vars(nvrtc).update(compile_cubin=compile_cubin, _compile=compile)
    return {"triton": [len(hits), hits.count(False)], "cuda": [len(asked), len(compiled)]}


HOME = [""]  # the folder of the caches


def _noted(calls: list[Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose calls are noted."""

    def noted(*given: Any) -> Any:
        calls.append(given)
        return function(*given)

    return noted


def _on_gpu(x: torch.Tensor) -> torch.Tensor:
    return torch.Tensor._make_subclass(OnGpu, x)


def main(ops: list[str]) -> None:
    """Print what is found in empty caches, then in those that `ahead` has filled, and what it could not compile."""
    card = cards.named(NAME)
    vars(cards)["_device"] = lambda index: card
    vars(torch.cuda).update(get_device_capability=lambda index: (9, 0), get_device_name=lambda device: NAME)
    sys.modules["cupy"] = SimpleNamespace(RawModule=lambda path: Path(path).read_bytes())  # type: ignore[assignment]
    vars(launch_cuda).update(CudaFunction=CudaThere)
    vars(launch).update(packed=lambda compiled, grid, given: PackedLaunch(nothing, {}))
    runtime.Kernel.crossed = lambda self, args: list(args)  # type: ignore[method-assign]
    tensor_map.Tiles.of = lambda self, tensor: tensor_map.DeviceMap(b"", GPU[0])  # type: ignore[method-assign]
    wanted, told = rows(ops), {}
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        HOME[0] = one
        told["empty"] = there(wanted)
        GPU[0], HOME[0] = 2, other
        os.environ |= {"TRITON_CACHE_DIR": f"{other}/triton", "KERNELMUX_CACHE_DIR": f"{other}/ours"}
        emulator.cache_folder.cache_clear()
        nvrtc._memory.clear()
        os.environ[cards.VARIABLE] = NAME
        cards._by_variable.cache_clear()
        for row in wanted:
            ahead.compile(row)
        told["ahead"] = there(wanted)
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1:])
