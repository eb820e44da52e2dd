"""Which part of a large call can be checked alone: the axes along which the reference falls into independent pieces.

No operator declares this. It is tried on a small call of the same form: an axis may be cut if the reference of the cut
inputs is the cut reference, up to rounding in float64. So rows of a softmax can be picked, its columns cannot; of a
causal attention any batch, any heads of keys with the heads of queries that share them, and any last few queries, but no
keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernelmux.registry.errors import KernelmuxError
from kernelmux.registry.spec import Call, exact_arguments, value_domains
from kernelmux.registry.spec.signature import Spec

TINY = 24  # lengths of the small call; large enough for any scalar that indexes an axis of a workload
CLOSE = 1e-9
SMALL = 2**20  # elements that any machine has room for: to look for larger intermediates takes a second, once
LIVE = 16 * 8  # bytes per element that reference, bound and comparison hold at a time: about 16 float64 tensors
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
    """Axes along which a call can be cut, how positions are picked, and the axis of each output that follows which.

    axes: one, or two that are cut together, as heads of keys are with the heads of queries that share them: the positions
    are of the first, and each stands for as many of the second as there are to it. outputs: place and axis, for each.
    """

    axes: tuple[str, ...]
    picker: str
    outputs: tuple[tuple[int, str], ...]

    @property
    def axis(self) -> str:
        return self.axes[0]

    def cut(self, call: Call, positions: torch.Tensor) -> Cut:
        """Keep these positions of the first axis."""
        own = lengths(call)
        return Cut(self.axes, self.picker, self.outputs, {a: _widened(positions, own, self.axis, a) for a in self.axes})


@dataclass(frozen=True)
class Cut(FreeAxis):
    """The positions of each axis that are kept."""

    positions: dict[str, torch.Tensor]

    def __str__(self) -> str:
        return f"{len(self.positions[self.axis])} of axis {self.axis} ({self.picker})"


def _widened(positions: torch.Tensor, own: dict[str, int], first: str, axis: str) -> torch.Tensor:
    """The positions of an axis that belong to those of the first: so many side by side as there are to each."""
    times = own[axis] // own[first]
    return (positions[:, None] * times + torch.arange(times)).flatten()


def room(call: Call) -> float:
    """Bytes that a check may use, and so what computes inputs."""
    if call.device.type == "cuda":
        return torch.cuda.mem_get_info(call.device)[0] * 0.8
    return 4e9


def work(call: Call) -> float:
    """About how many elements the reference touches at a time."""
    outputs = sum(torch.Size(o.shape(call)).numel() for o in call.spec.outputs)
    held = sum(t.numel() for t in call.tensors.values()) + outputs
    every = math.prod(lengths(call).values())  # elements of what would have all axes
    largest = _largest(call) if every > max(held, SMALL) else 0
    return max(held, call.cost.flops / FLOPS_PER_ELEMENT, largest)


class _Sizes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, `most` is the number of elements of the largest tensor that an operator gives."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        sizes = [x.numel() for x in tree_leaves(found) if isinstance(x, torch.Tensor)]
        self.most = max(self.most, *sizes, 0)
        return found


def _largest(call: Call) -> int:
    """Elements of the largest intermediate of the reference, which is computed without memory; 0 if it needs values.

    Attention in a window has few operations, and a reference with all scores, seen or not.
    """
    arguments = [
        torch.empty(x.shape, dtype=torch.float64 if x.is_floating_point() else x.dtype, device="meta")
        if isinstance(x, torch.Tensor)
        else x
        for x in call.arguments.values()
    ]
    with _Sizes() as sizes:  # type: ignore[no-untyped-call]
        try:
            call.spec.reference(*arguments)
        except Exception:  # whatever it makes of values that are not there
            return 0
    return int(sizes.most)


def choose(call: Call, limit: float) -> tuple[Cut, ...]:
    """The cuts that bring a call under `limit` elements; none if it is there, as many as there are if it cannot be."""
    chosen: list[Cut] = []
    need = work(call)
    for free in independent(call) if need > limit else ():
        if need <= limit:
            break
        length = lengths(call)[free.axis]
        positions = PICKERS[free.picker](length, max(1, int(length * limit / need)))
        chosen.append(free.cut(call, positions))
        need *= len(positions) / length
    return tuple(chosen)


Evaluate = Callable[[Spec, tuple[Any, ...]], tuple[torch.Tensor, ...]]


def _evaluate(spec: Spec, arguments: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    result = spec.reference(*arguments)
    return result if isinstance(result, tuple) else (result,)


def independent(call: Call, evaluate: Evaluate = _evaluate) -> Iterator[FreeAxis]:
    """The axes along which a call can be cut, in the order of the arguments, and then those that can be in pairs.

    evaluate: what a cut must not change, from the arguments in float64.
    """
    tiny = _tiny(call)
    if tiny is None:
        return
    whole, small, bound = evaluate(call.spec, exact_arguments(tiny)), lengths(tiny), set[str]()
    for axis, length in small.items():
        if length < 2:
            continue
        if free := _proven(tiny, (axis,), whole, evaluate):
            yield free
        else:
            bound.add(axis)
    for axis, other in _multiples(lengths(call)):
        alike = small[axis] > 1 and (axis, other) in _multiples(small) and {axis, other} <= bound
        # Of equal lengths nothing shows which heads of queries belong to one of keys.
        if alike and (small[other] > small[axis] or lengths(call)[other] == lengths(call)[axis]):
            if free := _proven(tiny, (axis, other), whole, evaluate):
                yield free
                bound -= {axis, other}


def _multiples(own: dict[str, int]) -> list[tuple[str, str]]:
    """Pairs of axes the second of which is a number of times as long as the first."""
    return [(a, b) for a in own for b in own if a != b and own[a] and own[b] and own[b] % own[a] == 0]


def _proven(tiny: Call, axes: tuple[str, ...], whole: tuple[torch.Tensor, ...], evaluate: Evaluate) -> FreeAxis | None:
    """The axes, if a cut to one, to two and to three positions is the cut of the whole: three of six heads of queries,
    spread, suit three of keys by chance.
    """
    length = lengths(tiny)[axes[0]]
    for picker, pick in PICKERS.items():
        counts = range(1, min(3, length - 1) + 1)  # fewer than there are: the cut call is another call
        found = {
            _followed(tiny, FreeAxis(axes, picker, ()).cut(tiny, pick(length, n)), whole, evaluate) for n in counts
        }
        outputs = found.pop()
        if outputs and not found:
            return FreeAxis(axes, picker, outputs)
    return None


def _followed(
    tiny: Call, cut: Cut, whole: tuple[torch.Tensor, ...], evaluate: Evaluate
) -> tuple[tuple[int, str], ...] | None:
    """Place and axis of each output that follows the cut; None if the reference of the cut is not the cut reference."""
    try:
        found = evaluate(tiny.spec, cut_arguments(tiny, exact_arguments(tiny), cut))
    except (RuntimeError, ArithmeticError, ValueError, IndexError):
        return None
    if any(_tells(w) and not _tells(c) for w, c in zip(whole, found, strict=True)):
        return None
    followed = [_follows(w, c, cut) for w, c in zip(whole, found, strict=True)]
    return None if None in followed else tuple(f for f in followed if f is not None)


def _tells(x: torch.Tensor) -> bool:
    """A number other than 0 is in it. Rows that a loss ignores are 0 whatever the others are, and prove nothing."""
    return bool((x.isfinite() & (x != 0)).any())


def _follows(whole: torch.Tensor, found: torch.Tensor, cut: Cut) -> tuple[int, str] | None:
    """The output axis along which the cut reference is the cut of the whole one, and of what; None if there is none."""
    for name, positions in cut.positions.items():
        for axis in range(whole.dim()):
            if whole.shape[axis] <= int(positions.max()):
                continue
            wanted = whole.index_select(axis, positions)
            if wanted.shape == found.shape and torch.allclose(wanted, found, rtol=CLOSE, atol=CLOSE, equal_nan=True):
                return axis, name
    return None


def _tiny(call: Call) -> Call | None:
    """A small call of the same form on the CPU, or None if the spec allows none."""
    own = lengths(call)
    least = {axis: min(n, TINY) for axis, n in own.items()}
    found = _drawn(call, least)
    for axis, other in _multiples(own) if found is None else ():  # as 40 heads of queries, which share 20 of keys
        short = min(own[axis], TINY // 2)
        if found := _drawn(call, least | {axis: short, other: short * min(own[other] // own[axis], 2)}):
            break
    return found


def _drawn(call: Call, own: dict[str, int]) -> Call | None:
    """A call of the same form with axes of these lengths."""
    rng, drawn = torch.Generator().manual_seed(0), dict[str, torch.Tensor]()
    for tensor in (t for t in call.spec.tensors if t.name in call.tensors):
        x = call.tensors[tensor.name]
        shape = [own[axis] for axis in tensor.named(x.shape)]
        drawn[tensor.name] = torch.randn(shape, generator=rng).mul(8).to(x.dtype)
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


def cut_arguments(call: Call, arguments: tuple[Any, ...], cut: Cut) -> tuple[Any, ...]:
    """Arguments in spec order, cut along axes wherever they stand."""
    names = {t.name: t for t in call.spec.tensors}
    found = []
    for name, value in zip(call.arguments, arguments, strict=True):
        if name in names and value is not None:
            for i, letter in enumerate(names[name].named(value.shape)):
                if letter in cut.positions:
                    value = value.index_select(i, cut.positions[letter].to(value.device))
        found.append(value)
    return tuple(found)


def cut_outputs(outputs: tuple[torch.Tensor, ...], cuts: tuple[Cut, ...]) -> tuple[torch.Tensor, ...]:
    """The part of the outputs that the cuts leave."""
    kept = []
    for i, value in enumerate(outputs):
        for cut in cuts:
            place, axis = cut.outputs[i]
            value = value.index_select(place, cut.positions[axis].to(value.device))
        kept.append(value)
    return tuple(kept)
