"""Calls as conditions see them: told to the process of a candidate, whose own conditions are asked there.

Tensors have shapes, strides and dtypes, and no memory: such a call is `hypothetical`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from kernelmux.candidate import memory
from kernelmux.registry.util import cards


@dataclass(frozen=True)
class AskedCondition:
    """A condition that the process of a candidate answers. ask: of a call, None or the reason why it is not met."""

    text: str
    ask: Callable[[Any], str | None]

    def check(self, call: Any) -> str | None:
        """None if the call meets it, else the reason."""
        return self.ask(call)


def described(call: Any) -> dict[str, Any]:
    """A call as JSON."""
    tensors = {name: memory.described(x) for name, x in call.tensors.items()}
    told = {"tensors": tensors, "scalars": call.scalars, "axes": call.axes, "capability": call.capability}
    names = [t.name for t in call.spec.tensors]
    return {**told, "op": call.spec.name, "names": names, "order": [*call.arguments], "device": call.device.type}


class ToldCall:
    """A call that was told: what of `registry.spec.Call` concerns its arguments."""

    hypothetical = True

    def __init__(self, told: dict[str, Any]) -> None:
        self.spec = SimpleNamespace(name=told["op"], tensors=[SimpleNamespace(name=name) for name in told["names"]])
        self.tensors = {name: _tensor(one) for name, one in told["tensors"].items()}
        self.scalars, self.axes = _tuples(told["scalars"]), _tuples(told["axes"])
        known = {**dict.fromkeys(told["names"]), **self.tensors, **self.scalars}
        self.arguments = {name: known[name] for name in told["order"]}
        self.device = torch.device(told["device"])
        self.capability = tuple(told["capability"]) if told["capability"] else None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the first tensor that is given."""
        return next(iter(self.tensors.values())).dtype

    @property
    def card(self) -> cards.Card | None:
        """The GPU that it runs on (or the emulated one), None on a CPU."""
        return cards.for_call(self.device, self.capability, hypothetical=True)


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _tensor(told: dict[str, Any]) -> torch.Tensor:
    return torch.empty_strided(told["shape"], told["strides"], dtype=memory.DTYPES[told["dtype"]], device="meta")
