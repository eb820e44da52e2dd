"""The device that a question is about: a name from the command line, or what this machine has."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import torch

from kernelmux.registry.errors import ArgumentError, shown


@dataclass(frozen=True)
class Machine:
    """A device as backends are asked about it.

    elsewhere: a GPU by its compute capability, so that what this machine lacks does not matter.
    """

    name: str
    device: torch.device
    capability: tuple[int, int] | None
    elsewhere: bool


def cores() -> int:
    """The cores that this process may use: of a container or a batch job often fewer than the machine has."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux alone has it
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def machine(name: str | None, where: str) -> Machine:
    """ "cpu", "cuda" (if there is a GPU), a capability such as "sm_90", or None for the best of this machine.

    ArgumentError, which begins with `where`, for anything else.
    """
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if isinstance(name, str) and re.fullmatch(r"sm_[1-9]\d{1,2}", name, re.ASCII):
        return Machine(name, torch.device("cuda"), (int(name[3:-1]), int(name[-1])), True)
    if isinstance(name, str) and name == "cpu":
        return Machine(name, torch.device("cpu"), None, False)
    if isinstance(name, str) and name == "cuda" and torch.cuda.is_available():
        return Machine(name, torch.device("cuda"), torch.cuda.get_device_capability(), False)
    raise ArgumentError(
        f"{where}: expected cpu, cuda (if there is a GPU) or a capability such as sm_90, got {shown(name)}"
    )
