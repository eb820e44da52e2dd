"""The device that a question is about: a name from the command line, or what this machine has."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from kernelmux.registry.errors import ArgumentError, shown
from kernelmux.registry.util import cards
from kernelmux.registry.util.cards import Card


@dataclass(frozen=True)
class TargetDevice:
    """A device as backends are asked about it.

    elsewhere: a GPU by its compute capability, so that what this machine lacks does not matter.
    """

    name: str
    device: torch.device
    capability: tuple[int, int] | None
    elsewhere: bool


CARD = "a GPU by name or compute capability, rtx4090 or sm_89"


@contextmanager
def standing(name: str | None, where: str, gpu: bool = False) -> Iterator[Card | None]:
    """Inside, the emulator stands for a card, here and in processes that start here; with None nothing changes.

    gpu: the GPU at hand stands for it instead, which must be of a capability no earlier than the card's; ArgumentError
    otherwise, and for an unknown name, beginning with `where`.
    """
    if name is None:
        yield None
        return
    card, variable = cards.named(name, where), cards.AS_VARIABLE if gpu else cards.VARIABLE
    if gpu and (have := torch.cuda.get_device_capability()) < card.capability:
        raise ArgumentError(
            f"{where}: expected a card of at most sm_{have[0]}{have[1]}, as here, got {name}, {card.sm}"
        )
    before = os.environ.get(variable)
    os.environ[variable] = card.key
    cards.reread()
    try:
        with cards.standing_for(card):
            yield card
    finally:
        os.environ.pop(variable) if before is None else os.environ.update({variable: before})
        cards.reread()


def machine(name: str | None, where: str, card: Card | None = None) -> TargetDevice:
    """ "cpu", "cuda" (if there is a GPU), a capability such as "sm_90", or None for the best of this machine.

    card: the GPU that the question is about, on any machine; with "cpu" the one that the emulator stands for.
    ArgumentError, which begins with `where`, for anything else.
    """
    if card and name not in (None, "cpu"):
        raise ArgumentError(f"{where}: expected cpu or nothing beside --card {card.key}, got {shown(name)}")
    if card and name is None:
        return TargetDevice(card.key, torch.device("cuda"), card.capability, True)
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if isinstance(name, str) and re.fullmatch(r"sm_[1-9]\d{1,2}", name, re.ASCII):
        return TargetDevice(name, torch.device("cuda"), (int(name[3:-1]), int(name[-1])), True)
    if isinstance(name, str) and name == "cpu":
        return TargetDevice(name, torch.device("cpu"), None, False)
    if isinstance(name, str) and name == "cuda" and torch.cuda.is_available():
        return TargetDevice(name, torch.device("cuda"), torch.cuda.get_device_capability(), False)
    raise ArgumentError(
        f"{where}: expected cpu, cuda (if there is a GPU) or a capability such as sm_90, got {shown(name)}"
    )
