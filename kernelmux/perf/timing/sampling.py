"""Which part of a large call can be checked alone: the axes along which the reference falls into independent pieces.

No operator declares this. It is tried on a small call of the same form: an axis may be cut if the reference of the cut
inputs is the cut reference, up to rounding in float64. So rows of a softmax can be picked, its columns cannot; of a
causal attention any batch, and any last few queries, but no keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from kernelmux.registry.errors import KernelmuxError
from kernelmux.registry.spec import Call, exact_arguments, value_domains
from kernelmux.registry.spec.signature import Spec

TINY = 24  # lengths of the small call; large enough for any scalar that indexes an axis of a workload
CLOSE = 1e-9
FLOPS_PER_ELEMENT = 256  # of a reference that holds intermediates, such as the weights of an attention with D = 64

Picker = Callable[[int, int], torch.Tensor]


def spread(length: int, count: int) -> torch.Tensor:
    """`count` positions from the first to the last."""
    places = torch.arange(count, dtype=torch.float64) * ((length - 1) / max(count - 1, 1))
    positions: torch.Tensor = torch.unique_consecutive(places.round().long())
    return positions


def last(length: int, count: int) -> torch.Tensor:
    """The last `count` positions."""
    return torch.arange(length - count, length)


PICKERS: dict[str, Picker] = {"spread": spread, "last": last}


@dataclass(frozen=True)
class FreeAxis:
    """An axis along which a call can be cut, how positions are picked, and the axis of each output that follows."""

    axis: str
    picker: str
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Cut(FreeAxis):
    """The positions of an axis that are kept."""

    positions: torch.Tensor

    def __str__(self) -> str:
        return f"{len(self.positions)} of axis {self.axis} ({self.picker})"


def work(call: Call) -> float:
    """About how many elements the reference touches at a time."""
    outputs = sum(torch.Size(o.shape(call)).numel() for o in call.spec.outputs)
    return max(sum(t.numel() for t in call.tensors.values()) + outputs, call.cost.flops / FLOPS_PER_ELEMENT)


def choose(call: Call, limit: float) -> tuple[Cut, ...]:
    """The cuts that bring a call under `limit` elements; none if it is there, as many as there are if it cannot be."""
    chosen: list[Cut] = []
    need = work(call)
    for free in independent(call) if need > limit else ():
        if need <= limit:
            break
        length = lengths(call)[free.axis]
        count = max(1, int(length * limit / need))
        positions = PICKERS[free.picker](length, count)
        chosen.append(Cut(free.axis, free.picker, free.outputs, positions))
        need *= len(positions) / length
    return tuple(chosen)


def independent(call: Call) -> Iterator[FreeAxis]:
    """The axes along which a call can be cut, in the order of the arguments."""
    tiny = _tiny(call)
    if tiny is None:
        return
    whole = _evaluate(call.spec, exact_arguments(tiny))
    for axis, length in lengths(tiny).items():
        if length > 1 and (free := _proven(tiny, axis, length, whole)):
            yield free


def _proven(tiny: Call, axis: str, length: int, whole: tuple[torch.Tensor, ...]) -> FreeAxis | None:
    for picker, pick in PICKERS.items():
        positions = pick(length, min(3, length - 1))  # fewer than there are: the cut call is another call
        try:
            cut = _evaluate(tiny.spec, select(tiny, axis, positions))
        except (RuntimeError, ArithmeticError, ValueError, IndexError):
            continue
        if any(_tells(w) and not _tells(c) for w, c in zip(whole, cut, strict=True)):
            continue
        followed = [_follows(w, c, positions) for w, c in zip(whole, cut, strict=True)]
        if all(follows is not None for follows in followed):
            return FreeAxis(axis, picker, tuple(f for f in followed if f is not None))
    return None


def _tells(x: torch.Tensor) -> bool:
    """A number other than 0 is in it. Rows that a loss ignores are 0 whatever the others are, and prove nothing."""
    return bool((x.isfinite() & (x != 0)).any())


def _follows(whole: torch.Tensor, cut: torch.Tensor, positions: torch.Tensor) -> int | None:
    """The output axis along which the cut reference is the cut of the whole one; None if there is none."""
    for axis in range(whole.dim()):
        if whole.shape[axis] <= int(positions.max()):
            continue
        wanted = whole.index_select(axis, positions)
        if wanted.shape == cut.shape and torch.allclose(wanted, cut, rtol=CLOSE, atol=CLOSE, equal_nan=True):
            return axis
    return None


def _evaluate(spec: Spec, arguments: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    result = spec.reference(*arguments)
    return result if isinstance(result, tuple) else (result,)


def _tiny(call: Call) -> Call | None:
    """A small call of the same form on the CPU, or None if the spec allows none."""
    rng = torch.Generator().manual_seed(0)
    shapes = {name: [min(n, TINY) for n in x.shape] for name, x in call.tensors.items()}
    drawn = {name: torch.randn(shapes[name], generator=rng).mul(8).to(x.dtype) for name, x in call.tensors.items()}
    try:
        return call.spec.bind(**{**call.arguments, **value_domains.lawful(call.spec, drawn, call.scalars)})
    except KernelmuxError:
        return None


def lengths(call: Call) -> dict[str, int]:
    """The length of every axis of the inputs, in the order of the arguments."""
    by_axis: dict[str, int] = {}
    for tensor in (t for t in call.spec.tensors if t.name in call.tensors):
        value = call.arguments[tensor.name]
        by_axis.update(zip(tensor.named(value.shape), value.shape, strict=True))
    return by_axis


def select(call: Call, axis: str, positions: torch.Tensor) -> tuple[Any, ...]:
    """The float64 arguments of a call, cut along one axis."""
    return cut_arguments(call, exact_arguments(call), axis, positions)


def cut_arguments(call: Call, arguments: tuple[Any, ...], axis: str, positions: torch.Tensor) -> tuple[Any, ...]:
    """Arguments in spec order, cut along one axis wherever it stands."""
    names = {t.name: t for t in call.spec.tensors}
    cut = []
    for name, value in zip(call.arguments, arguments, strict=True):
        if name in names and value is not None:
            for i, letter in enumerate(names[name].named(value.shape)):
                if letter == axis:
                    value = value.index_select(i, positions.to(value.device))
        cut.append(value)
    return tuple(cut)


def cut_outputs(outputs: tuple[torch.Tensor, ...], cuts: tuple[Cut, ...]) -> tuple[torch.Tensor, ...]:
    """The part of the outputs that the cuts leave."""
    kept = []
    for i, value in enumerate(outputs):
        for cut in cuts:
            value = value.index_select(cut.outputs[i], cut.positions.to(value.device))
        kept.append(value)
    return tuple(kept)
