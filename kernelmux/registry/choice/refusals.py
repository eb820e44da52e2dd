"""Variants that a card refused to launch, or that do not compile for it, by the kind of call: later choices pass them over.

A call that may fall back goes on to the next rung (`dispatch`). What is noted here keeps equal calls from trying again, and
`explain` tells it. All is forgotten when another card is emulated.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from kernelmux.registry.spec.binding import identity
from kernelmux.registry.spec.conditions import Unmet
from kernelmux.registry.spec.signature import Call
from kernelmux.registry.util import cards

KINDS = 4096  # of calls; beyond it the table starts anew
TRIES = 8  # kinds of call for which a variant did not compile; then no call in these dtypes tries it again


@dataclass(frozen=True)
class Refusal:
    """Why a variant did not run: what its launch needs and what the card has, or what the compiler says.

    compiles: whether there was a kernel to be launched.
    """

    text: str
    compiles: bool = True

    @property
    def unmet(self) -> Unmet:
        """As a condition that a call does not meet."""
        return Unmet(self.text, kind="a launch that the card takes" if self.compiles else "a kernel that compiles")


_lock = threading.Lock()
noted: dict[tuple[object, ...], Refusal] = {}  # by operator, variant and kind of call
_failed: dict[tuple[object, ...], int] = {}  # how often a variant did not compile, by operator, variant and dtypes


def _forget() -> None:
    with _lock:
        noted.clear()
        _failed.clear()


cards.when_changed(_forget)


def _kind(call: Call, variant: str) -> tuple[object, ...]:
    """What a launch depends on, but for addresses."""
    tensors = ((tuple(x.shape), x.stride()) for x in call.tensors.values())
    scalars = (identity(value) for value in call.scalars.values())
    return *_formats(call, variant), *tensors, *scalars


def _formats(call: Call, variant: str) -> tuple[object, ...]:
    return call.spec.name, variant, call.device, *((name, x.dtype) for name, x in call.tensors.items())


def note(call: Call, variant: str, refusal: Refusal) -> None:
    """Have calls like this one pass over the variant, "cuda/tiled"."""
    with _lock:
        if len(noted) >= KINDS:
            noted.clear()
        noted[_kind(call, variant)] = refusal
        if not refusal.compiles:
            formats = _formats(call, variant)
            _failed[formats] = _failed.get(formats, 0) + 1
            if _failed[formats] >= TRIES:
                noted[formats] = refusal


def withdraw(call: Call, variant: str) -> None:
    """Forget what was noted of this kind of call: nothing else can run it."""
    with _lock:
        noted.pop(_kind(call, variant), None)
        noted.pop(_formats(call, variant), None)


def of(call: Call, variant: str) -> Refusal | None:
    """What was noted of a variant for calls like this one."""
    if not noted:
        return None
    return noted.get(_kind(call, variant)) or noted.get(_formats(call, variant))
