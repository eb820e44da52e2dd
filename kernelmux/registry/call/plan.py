"""What is remembered of a kind of call: what to call, and what to do to the arguments first."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch

from kernelmux.registry.observe import counters


@dataclass(frozen=True, slots=True)
class CallPlan:
    """A remembered choice: what to call, and what to do to the arguments first; no tensors.

    resolved, copies: positions of inputs whose negative or conjugate bit is applied, and that are made contiguous.
    scalars: normalised values by position, where they differ from what was passed. emulation: entered around the call.
    direct: none of these, so that the arguments go on as they are. ran, tick: what `stats` and `record` say of a call.
    mode: that of `determinism` for which the choice was made; None where it is the same in each.
    quick: functions that compare a call with those of this plan, the last in use; None if none can (`fast_path.again`).
    """

    fn: Callable[..., Any]
    device: torch.device
    resolved: tuple[int, ...]
    copies: tuple[int, ...]
    scalars: tuple[tuple[int, Any], ...]
    emulation: Callable[[], AbstractContextManager[object]] | None
    direct: bool
    ran: counters.Ran
    tick: Callable[[], int]
    mode: int | None = None
    quick: list[Callable[..., Any] | None] = field(default_factory=list, init=False, compare=False)

    def run(self, values: tuple[Any, ...]) -> Any:
        """The result for the arguments of a call of this kind."""
        if self.direct:
            return self.fn(*values)
        arguments = list(values)
        for i, value in self.scalars:
            arguments[i] = value
        if self.copies:
            for i in self.resolved:
                arguments[i] = arguments[i].resolve_conj().resolve_neg()
            for i in self.copies:
                arguments[i] = arguments[i].contiguous()
        if self.emulation is None:
            return self.fn(*arguments)
        with self.emulation():
            return self.fn(*arguments)


class CallPlans(dict[object, CallPlan]):
    """The plans by the key of a call.

    quick: per operator, the comparison that its public function makes first. looked_up: per operator, the plan of the
    last public call that came past it. A plan becomes the quick one when it is looked up twice and no other in
    between: calls of three kinds that take turns pay for one comparison that fails, 0.2 us, and for no change.
    """

    __slots__ = ("looked_up", "quick")

    def __init__(self) -> None:
        super().__init__()
        self.quick: dict[str, Callable[..., Any]] = {}
        self.looked_up: dict[str, CallPlan] = {}

    def drop(self, op: str, plan: CallPlan) -> None:
        """Forget one plan, under all its keys."""
        for key in [key for key, known in list(self.items()) if known is plan]:
            self.pop(key, None)
        if self.quick.get(op) in plan.quick:
            self.quick.pop(op, None)
        if self.looked_up.get(op) is plan:
            self.looked_up.pop(op, None)

    def clear(self) -> None:
        """Forget all plans, the quick ones too."""
        super().clear()
        self.quick.clear()
        self.looked_up.clear()
