"""What a process with an H100 would look for in compilers' caches, asked without one: `as_on_a_gpu ahead|there OP ...`.

ahead: compile the rows of these operators as a worker without a GPU does. there: make the same calls with tensors that say
they are on an H100, a Triton driver that answers as its own does there, and CuPy's own naming of files; prints what of the
caches was missing, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from kernelmux.perf.planning import plan
from kernelmux.perf.planning.plan import Row
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.perf.session import ahead
from kernelmux.perf.session.harness import Harness
from kernelmux.perf.timing.clock import VirtualClock
from kernelmux.perf.timing.inputs import Inputs
from kernelmux.registry import catalog, dtypes
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.util import cards


def nothing(*given: Any) -> None:
    """In place of a launch."""


class OnGpu(torch.Tensor):
    """A tensor that says it is on GPU 0."""

    is_cuda = True

    def get_device(self) -> int:
        return 0


def rows(ops: list[str]) -> list[Row]:
    """One row of each variant in each dtype."""
    found = plan.rows(PerfOptions(ops=tuple(ops), device="cuda", elsewhere=True, quick=True))
    return [row for row in found if ahead.able(row.backend) and not row.problem and not row.again]


def triton_there(hits: list[bool]) -> None:
    """Triton's driver is one of an H100 that loads and launches nothing; hits: whether each kernel was in the cache."""
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase
    from triton.runtime import driver

    from kernelmux.backends.triton._launch import launch
    from kernelmux.backends.triton._launch.packed import PackedLaunch
    from kernelmux.emulator.compilers.triton_driver import DEVICES

    class There(DriverBase):  # type: ignore[misc]
        launcher_cls = staticmethod(lambda source, metadata: lambda *given: None)
        utils = SimpleNamespace(
            get_device_properties=lambda device: DEVICES["sm_90"],
            load_binary=lambda name, cubin, shared, device: (None, 0, 0, 0, 1024),
            unload_module=lambda module: None,
        )

        def __init__(self) -> None:
            """Nothing of a GPU is asked."""

        is_active = classmethod(lambda cls: True)

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", 90, 32)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int | None = None) -> int:
            return 0

        def get_active_torch_device(self) -> torch.device:
            return torch.device("cuda", 0)

        def get_benchmarker(self) -> Any:
            return None

        def map_python_to_cpp_type(self, ty: str) -> str:
            return ty

    driver.set_active(There())
    knobs.compilation.listener = lambda src, metadata, metadata_group, times, cache_hit: hits.append(cache_hit)
    vars(launch)["packed"] = lambda compiled, grid, given: PackedLaunch(nothing, {})


def cuda_there(asked: list[tuple[str, tuple[str, ...]]]) -> None:
    """asked: gets the texts and options that would be given to `cupy.RawModule`."""
    from kernelmux.backends.cuda._launch import launch_cuda, runtime, tensor_map

    class Function:
        following = property(lambda self: self)

        def __init__(self, text: str, entry: str, options: tuple[str, ...], index: int, parameters: Any) -> None:
            asked.append((text, launch_cuda.options_for(options, launch_cuda.architecture(index))))

        def launch(self, *given: Any) -> None:
            """Nothing runs."""

    vars(launch_cuda)["CudaFunction"] = Function
    runtime.Kernel.crossed = lambda self, args: list(args)  # type: ignore[method-assign] # nothing has an address on a GPU
    tensor_map.Tiles.of = lambda self, tensor: tensor_map.DeviceMap(b"", 0)  # type: ignore[method-assign]


def called(row: Row, card: cards.Card) -> None:
    """Call the variant of a row with tensors on GPU 0."""
    spec, implementation = catalog.spec(row.op), registered.variants(row.backend, row.op)[row.variant]
    case = spec.case(row.workload)
    tensors = spec.untouched(case, dtypes.parse(row.dtype), torch.device("cpu"))
    call = spec.bind(**{**tensors, **case.scalars}, capability=card.capability)
    given = Inputs.laid_out(call, implementation)
    implementation.fn(*(x.as_subclass(OnGpu) if isinstance(x, torch.Tensor) else x for x in given))


def main(step: str, ops: list[str]) -> dict[str, Any]:
    """What is printed."""
    card = ahead.card_beside()
    if step == "ahead":
        harness = Harness(PerfOptions(device="cuda"), (), VirtualClock())
        errors = [found["error"] for row in rows(ops) if (found := harness.compile(row))["error"]]
        return {"rows": len(rows(ops)), "errors": errors, "lost": harness.lost}
    hits: list[bool] = []
    asked: list[tuple[str, tuple[str, ...]]] = []
    vars(cards)["_device"] = lambda index: card
    triton_there(hits)
    cuda_there(asked)
    for row in rows(ops):
        called(row, card)
    missing = {"triton": hits.count(False), "cuda": new_files(asked, card)}
    return {"asked": {"triton": len(hits), "cuda": len(set(asked))}, "missing": missing}


def new_files(asked: list[tuple[str, tuple[str, ...]]], card: cards.Card) -> int:
    """How many files CuPy writes anew for these."""
    from cupy._core import core
    from cupy.cuda import runtime

    from kernelmux.backends.cuda._launch import launch_ahead

    folder = Path(os.environ["CUPY_CACHE_DIR"])
    before = set(folder.iterdir())
    with launch_ahead.ahead(card):
        for text, options in asked:
            try:
                core.compile_with_cache(text, options, prepend_cupy_headers=False)
            except runtime.CUDARuntimeError:
                continue
    return len(set(folder.iterdir()) - before)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2:])))
