"""Arguments, results and exceptions of a call as JSON, on the side of the suite."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kernelmux.candidate import global_state, memory
from kernelmux.candidate.allocations import Guard
from kernelmux.candidate.errors import CandidateError, CandidateOutOfMemory


@dataclass(frozen=True)
class Asked:
    """Calls that a process was asked for: the number of the message, how many they are, and what they were given.

    together: in threads, or among other work: they have one limit of time.
    """

    nonce: str
    count: int
    storages: list[torch.UntypedStorage]
    used: list[int]
    guard: Guard | None
    virtual: bool
    together: bool


def argument(value: Any, storages: list[torch.UntypedStorage]) -> dict[str, Any]:
    """An argument as JSON; its memory is added to the storages, each once."""
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        place = next((i for i, s in enumerate(storages) if s.data_ptr() == storage.data_ptr() and s.nbytes()), None)
        if place is None:
            storages.append(storage)
            place = len(storages) - 1
        pinned = {"pinned": True} if value.device.type == "cpu" and value.is_pinned() else {}
        return {"tensor": place, **memory.described(value), **pinned}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    raise TypeError(f"a candidate gets tensors, numbers and words, got {type(value).__name__}")


def foreign(kind: str) -> Any:
    """An object that stands for one of a class that a candidate returned."""
    module, _, name = kind.rpartition(".")
    if kind == "builtins.NoneType":
        return None
    return type(name if name.isidentifier() else "object", (), {"__module__": module})()


def text(told: dict[str, Any]) -> str:
    """What a candidate raised, with its places."""
    places = "".join(f"\n  at {place}" for place in told["places"])
    return f"{told['kind']}: {told['text']}{places}"


def error(told: dict[str, Any], when: str = "") -> CandidateError:
    """What a candidate raised, as an error of the suite: its text, and place and kind in a line."""
    place = str(told["places"][0]).partition(" in ")[0] if told["places"] else ""
    kind = CandidateOutOfMemory if told["kind"] == torch.OutOfMemoryError.__name__ else CandidateError
    return kind(" ".join(filter(None, ["raised", when, text(told)])), f"{Path(place).name}: {told['kind']}")


def surroundings() -> list[str] | None:
    """The settings that the suite has made around this call. No kernel sees autocast: arguments come cast."""
    asked = global_state.asked()
    return None if asked is None else [name for name in asked if name != global_state.AUTOCAST]
