"""Kernels of a call compiled by a process without a GPU, for a GPU elsewhere or one that other processes use meanwhile.

The emulator stands for that GPU (KERNELMUX_EMULATED_GPU), so launchers choose as they do there. Machine code goes into the
caches of Triton and of our own, under the keys by which a process with the GPU looks for it. What that does not find, it
compiles itself. Nothing is launched, and tensors have neither values nor memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec

from kernelmux import emulator
from kernelmux.emulator import nvrtc
from kernelmux.emulator.stand_in import StandIn
from kernelmux.registry.backend import device_tables
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.spec import Call
from kernelmux.registry.util import cards


class UnlaunchedKernel(StandIn):
    """A kernel that runs nothing."""


def able(backend: str) -> bool:
    """Whether the kernels of a backend are compiled so; a GPU that stands for a lesser card has other code."""
    return backend in registered.backends() and registered.backend(backend).emulates and cards.lesser() is None


def compile_call(call: Call, backend: str, variant: str) -> None:
    """Compile what a variant launches for a call on the card that the emulator stands for. Raises what compilers and
    launchers do, which may ask for values that the tensors have not."""
    implementation = registered.variants(backend, call.spec.name)[variant]
    with _compiling(backend):
        implementation.fn(*registered.laid_out(call, implementation))


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
