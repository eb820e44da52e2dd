"""Whether the launches of a call compile for the card that the emulator stands for, and fit within its limits.

Nothing runs: tensors have memory that is never touched, and launches are noted. What a block needs is read from the machine
code, registers and static shared memory, and from its launch.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch

from kernelmux import emulator
from kernelmux.emulator import launch_log
from kernelmux.emulator.launch_log import Launch
from kernelmux.emulator.nvrtc import CompileError, with_machine_code
from kernelmux.emulator.resources import MAX_GRID, Resources, multiprocessor, occupancy, resources
from kernelmux.emulator.stand_in import StandIn
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.cases import INPUTS, Case
from kernelmux.registry.errors import UnsupportedError, described
from kernelmux.registry.spec import Call, OpSpec
from kernelmux.registry.util.cards import Card

FITS, TORCH, REFUSED, COMPILE, ROOM, FAILS = "fits", "torch", "refused", "does not compile", "does not fit", "fails"
OUTCOMES = (FITS, TORCH, REFUSED, COMPILE, ROOM, FAILS)
GOOD = (FITS, TORCH, REFUSED)
ZEROED = 1 << 20  # elements of a tensor that is cleared: launchers may read indices and lengths
COMPILERS = ("triton.compiler", "triton.backends", "triton.runtime.errors")  # modules of Triton's exceptions
SHOWN = 200  # characters of a reason

_needs: dict[object, Resources] = {}  # of each different kernel, by recipe, target and name


def judged(spec: OpSpec, case: Case, dtype: torch.dtype, variant: str, card: Card) -> tuple[str, str]:
    """One of OUTCOMES for a call of a variant, "cuda/tiled", and why; of one that fits the bytes of spills, if any."""
    backend, _, name = variant.partition("/")
    if not registered.backend(backend).emulates:
        return TORCH, ""
    try:
        launches = _launches(spec, case, dtype, backend, name)
    except UnsupportedError as error:
        return REFUSED, _short(error)
    except Exception as error:
        compiler = isinstance(error, CompileError) or type(error).__module__.startswith(COMPILERS)
        return (COMPILE if compiler else FAILS), _short(error)
    spills = 0
    for launch in launches:
        try:
            found = _needed(launch, card)
        except Exception as error:
            return COMPILE, f"{launch.kernel}: {_short(error)}"
        if why := _lack(launch, found, card):
            return ROOM, why
        spills = max(spills, (found[0].spill_stores or 0) + (found[0].spill_loads or 0))
    return FITS, str(spills or "")


class Noted(StandIn):
    """A kernel whose launches are noted alone."""

    def own_parameters(self) -> list[str]:
        head = re.search(rf"\.entry\s+{re.escape(self.name)}\s*\(([^)]*)\)", self.ptx)
        return re.findall(r"\.param\b", head[1]) if head else []

    def noted(
        self, grid: Any, block: Any, args: Sequence[Any], names: Any = (), shared: int = 0, cluster: Any = None
    ) -> None:
        if 0 not in (sizes := _three(grid)):
            launch_log.note(self.ptx, self.name, sizes, _three(block), shared)


def _three(size: Any) -> launch_log.Triple:
    x, y, z = (*((size,) if isinstance(size, int) else size), 1, 1)[:3]
    return int(x), int(y), int(z)


@contextmanager
def noting() -> Iterator[None]:
    """Inside, the emulator notes launches in the whole process and can run none, which takes a third of the time."""
    before = emulator.load_by(lru_cache(maxsize=4096)(Noted))
    try:
        yield
    finally:
        emulator.load_by(before)


def _short(error: Exception) -> str:
    """What went wrong; of a compiler's report the first line that says so."""
    if isinstance(error, CompileError):
        lines = error.log.splitlines()
        return next((line for line in lines if "error" in line.lower()), str(error)).strip()[:SHOWN]
    return " ".join(described(error).split())[:SHOWN]


def _launches(spec: OpSpec, case: Case, dtype: torch.dtype, backend: str, variant: str) -> list[Launch]:
    """What a variant launches for a call, compiled for the card at hand."""
    implementation, home = registered.variants(backend, spec.name)[variant], registered.backend(backend)
    call = _call(spec, case, dtype)
    values = [_laid(call.arguments[i.name], implementation.layout.get(i.name, "any")) for i in spec.inputs]
    with warnings.catch_warnings(), torch.no_grad(), home.emulation(), with_machine_code():
        warnings.simplefilter("ignore")
        log: list[Launch]
        with emulator.recorder(run=False) as log:
            implementation.fn(*values)
    return log


def _call(spec: OpSpec, case: Case, dtype: torch.dtype) -> Call:
    tensors = spec.untouched(case, dtype)
    for x in tensors.values():
        if x.numel() <= ZEROED:
            x.zero_()
    given: dict[str, Any] = {n: v for n, v in case.scalars.items() if n != INPUTS} | tensors
    return spec.bind(**given)


def _laid(value: Any, layout: str) -> Any:
    """A tensor as the dispatcher would copy it, without the copy."""
    if isinstance(value, torch.Tensor) and not registered.fits(value, layout):
        return torch.empty(value.shape, dtype=value.dtype)
    return value


def _needed(launch: Launch, card: Card) -> tuple[Resources, int]:
    """What the machine code of a launch needs, and its dynamic shared memory."""
    key = (launch.compiled_by.key, card.arch, launch.kernel)
    if key not in _needs:
        compiled = launch.compiled_by.compile(card.arch)
        _needs[key] = resources(compiled.image, compiled.log)[launch.kernel]
    return _needs[key], launch.shared


def _lack(launch: Launch, needed: tuple[Resources, int], card: Card) -> str:
    """What keeps a block of the launch from a multiprocessor of the card, or ""."""
    need, shared = needed
    if any(n > most for n, most in zip(launch.grid, MAX_GRID, strict=True)):
        return f"{launch.kernel}: a grid of {launch.grid}, of {MAX_GRID}"
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    found = occupancy(need, card.arch, threads, shared)
    if found.blocks:
        return ""
    limits = multiprocessor(card.arch)
    told: dict[str, Callable[[], str]] = {
        "shared memory": lambda: f"{need.shared + shared} bytes of shared memory, of {limits.shared_per_block}",
        "registers": lambda: f"{threads} threads of {need.registers} registers, of {limits.registers}",
        "threads": lambda: f"{threads} threads, of {limits.threads_per_block}",
    }
    return f"{launch.kernel}: {told.get(found.limited_by, lambda: found.limited_by)()}"
