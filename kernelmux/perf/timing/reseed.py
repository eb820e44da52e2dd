"""Values from a seed that is drawn at run time, which take the place of the old ones before the last timed call.

An output that was remembered by shape, by address or from known seeds is then wrong, and the timed call is the judged one.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import torch

from kernelmux.perf.planning.plan import Row
from kernelmux.perf.timing import inputs
from kernelmux.perf.timing.clock import Stopwatch
from kernelmux.perf.timing.inputs import Inputs
from kernelmux.perf.timing.verify import Oracle, WrongOutput
from kernelmux.registry.backend import Implementation
from kernelmux.registry.spec import Call

NEW = 5  # sets of values that a function from elsewhere is timed on
AGAIN = 3  # calls on each set once it has been seen
LONGER = (
    3.0  # times as long on unseen values: outputs are kept; on a busy CPU honest calls took 2.0 at most, cheats 6.4
)


def draw(row: Row, device: str) -> Call:
    """Inputs of a row's group from a seed that is drawn now."""
    return inputs.one(row, device, secrets.randbits(31))


class Exchange:
    """Puts fresh values into the tensors of one call, and later the old ones back."""

    def __init__(self, arguments: tuple[Any, ...], fresh: tuple[Any, ...]) -> None:
        pairs = zip(arguments, fresh, strict=True)
        self.pairs = [(x, y) for x, y in pairs if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)]
        self.kept: list[torch.Tensor] = []

    def put(self) -> None:
        self.kept = [x.clone() for x, _ in self.pairs]
        self.renew()

    def renew(self) -> None:
        """Write the fresh values once more: the caches of the machine are then as they were for the first call on them."""
        for x, new in self.pairs:
            x.copy_(new)

    def take_back(self) -> None:
        """WrongOutput if a call has changed an input."""
        changed = any(not torch.equal(_bytes(x), _bytes(new)) for x, new in self.pairs) if self.kept else False
        for (x, _), old in zip(self.pairs, self.kept, strict=False):
            x.copy_(old)
        self.kept = []
        if changed:
            raise WrongOutput("an input was changed by the call")


def require_nothing_kept(call: Callable[[], Any], exchanges: Iterator[Exchange], stopwatch: Stopwatch) -> None:
    """WrongOutput if calls on new values take longer than those that follow on the same: it remembers outputs.

    The shortest of each kind are compared: a busy machine makes some calls longer, never shorter.
    """
    first, again = [], []
    for exchange in exchanges:
        stopwatch(call)  # what runs for the first time after a pause is slower by itself
        exchange.put()
        first.append(stopwatch(call)[0])
        again += [_renewed(call, exchange, stopwatch) for _ in range(AGAIN)]
        exchange.take_back()
    longer = min(first) / min(again) if min(again) else 1.0
    if longer > LONGER:
        raise WrongOutput(f"outputs are kept: on values it has not seen before a call takes {longer:.1f} times as long")


def _renewed(call: Callable[[], Any], exchange: Exchange, stopwatch: Stopwatch) -> float:
    exchange.renew()
    return stopwatch(call)[0]


def _bytes(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().reshape(-1).view(torch.uint8)


def with_explanation(
    error: WrongOutput,
    result: Any,
    again: Callable[[], Any],
    given: Inputs,
    copy: int,
    implementation: Implementation,
    most: float,
) -> WrongOutput:
    """The error with what explains a wrong output: nothing written, an earlier call, inputs that were recognised.

    again: the call on the old values of that copy. most: elements of a call that the error is of.
    """
    outputs = result if isinstance(result, tuple) else (result,)
    if all(out.dtype.is_floating_point and bool(out.isnan().all()) for out in outputs):
        return WrongOutput(f"the output was never written: it holds the NaN from before the call; {error}")
    if not any(out.any() for out in outputs):
        return WrongOutput(f"all outputs are 0; {error}")
    for earlier in dict.fromkeys((copy, 0)):
        if _right(result, given.calls[earlier], implementation, most):
            return WrongOutput(f"the output is the one of an earlier call, with other values of the inputs; {error}")
    if _right(again(), given.calls[copy], implementation, most):
        return WrongOutput(f"it recognises inputs: right on values of a known seed, wrong on those drawn now; {error}")
    return error


def _right(result: Any, call: Call, implementation: Implementation, most: float) -> bool:
    try:
        Oracle(call, most).check(result, implementation)
    except (WrongOutput, torch.OutOfMemoryError):
        return False
    return True
