"""Rows compiled by a process without a GPU, for the kind of GPU beside it, which times other rows meanwhile.

The emulator stands for that GPU (KERNELMUX_EMULATED_GPU, which the runner sets), so launchers choose as they do there.
Machine code goes into the caches of Triton and of our own, under the keys by which a process with the GPU looks for it.
What that does not find, it compiles itself. Nothing is launched, and inputs have neither values nor memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any

import torch

from kernelmux import emulator
from kernelmux.emulator import nvrtc
from kernelmux.perf.planning.plan import Row
from kernelmux.perf.timing.inputs import Inputs
from kernelmux.registry import catalog, dtypes
from kernelmux.registry.backend import device_tables
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.util import cards


class UnlaunchedKernel:
    """In place of what the emulator makes of a PTX text, which would be parsed for that: a kernel that runs nothing."""

    parameters = ()

    def __init__(self, ptx: str) -> None:
        self.ptx, self.module = ptx, self

    def kernel(self, name: str) -> UnlaunchedKernel:
        return self

    def launch(self, *given: Any, **more: Any) -> None:
        """Nothing runs."""


def able(backend: str) -> bool:
    """Whether the kernels of a backend are compiled so; a GPU that stands for a lesser card has other code."""
    return backend in registered.backends() and registered.backend(backend).emulates and cards.lesser() is None


def compile(row: Row) -> None:
    """Compile what a call of the row launches on the card that the emulator stands for. Raises what compilers and
    launchers do, which may ask for values that these inputs have not."""
    implementation, spec = registered.variants(row.backend, row.op)[row.variant], catalog.spec(row.op)
    dtype, capability = dtypes.parse(row.dtype), cards.emulated().capability
    call = spec.hypothetical(spec.case(row.workload), dtype, torch.device("cpu"), capability)
    with _compiling(row.backend):
        implementation.fn(*Inputs.laid_out(call, implementation))


@contextmanager
def _compiling(backend: str) -> Iterator[None]:
    """Inside, what a backend emulates is compiled to machine code and launched by none."""
    with ExitStack() as inside:
        inside.callback(emulator.load_by, emulator.load_by(UnlaunchedKernel))
        inside.enter_context(device_tables.of_emulated())
        inside.enter_context(warnings.catch_warnings(action="ignore"))
        inside.enter_context(registered.backend(backend).emulation())
        inside.enter_context(nvrtc.with_machine_code())
        if find_spec("triton"):
            inside.enter_context(emulator.triton_driver.with_machine_code())
        yield
