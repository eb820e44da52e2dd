"""Rows compiled by a process without a GPU, for the kind of GPU beside it: timings go on there meanwhile.

The launchers of our backends choose for that card, Triton compiles for it, and CuPy; each writes its own files, under the
names that it will look for in the process that times. Where a name differs after all, that process compiles as it would
without this. Nothing runs, and inputs have no values.
"""

from __future__ import annotations

import os
import warnings
from contextlib import ExitStack

import torch

from kernelmux import emulator
from kernelmux.perf.planning.plan import Row
from kernelmux.perf.timing.inputs import Inputs
from kernelmux.registry import catalog, dtypes
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.util import cards
from kernelmux.registry.util.cards import Card
from kernelmux.runner import gpus

OURS = ("cuda", "triton")  # backends that can


def able(backend: str) -> bool:
    """Whether rows of a backend are compiled so; a GPU that stands for a lesser card has its kernels in another way."""
    return backend in OURS and cards.lesser() is None


def card_beside() -> Card:
    """The card of the GPU beside this process, as the runner says; ArgumentError if there is none, or an unknown one."""
    number, _, name = os.environ.get(gpus.BESIDE, "").partition(" ")
    found = cards.with_capability(tuple(map(int, number.split("."))), gpus.BESIDE) if number else None  # type: ignore[arg-type]
    if found is None:
        raise ArgumentError("there is no GPU beside this process for which it could compile")
    return cards.by_device_name(name, found.capability) or found


def compile(row: Row, card: Card) -> None:
    """Compile what a call of the row launches on a card. Raises what compilers and launchers do."""
    implementation, spec = registered.variants(row.backend, row.op)[row.variant], catalog.spec(row.op)
    case = spec.case(row.workload)
    with ExitStack() as inside:
        inside.enter_context(warnings.catch_warnings(action="ignore"))
        if row.backend == "cuda":
            from kernelmux.backends.cuda._launch import launch_ahead

            inside.enter_context(launch_ahead.ahead(card))
        else:
            from kernelmux.backends.triton._launch import launch

            inside.enter_context(launch.ahead())
        inside.enter_context(cards.standing_for(card))
        inside.enter_context(emulator.recorder(run=False))
        inside.enter_context(registered.backend(row.backend).emulation())
        if row.backend == "triton":
            inside.enter_context(emulator.triton_driver.with_machine_code())
        tensors = spec.untouched(case, dtypes.parse(row.dtype), torch.device("cpu"))
        call = spec.bind(**{**tensors, **case.scalars}, capability=card.capability)
        implementation.fn(*Inputs.laid_out(call, implementation))
