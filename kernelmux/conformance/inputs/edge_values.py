"""Inputs that tell where a block, a tile or a loop ends: large and special numbers at both sides of an edge.

Along an axis that was made long these are its first and its last elements, and those at both sides of c. Each line along it
has its large number at another one of these places, and every third line none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from kernelmux.conformance.inputs.special_numbers import values_of
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.registry.spec import Positive

RANDOM, ENDS = "random", "large at the edges"
# Numbers that no other may be near: an overflow beside a NaN cannot be told from it.
APART = (("nan", "inf", "-inf", "-0", "subnormal"), ("-0", "largest", "subnormal"))
TIMES = 3.0  # the largest of the other elements
LEFT = 3  # one line in so many stays as it is


def edges(length: int, c: int) -> list[int]:
    """The places of an axis at which something may begin or end."""
    return [i for i in dict.fromkeys((c, length - 1, c - 1, 0, length - 2)) if 0 <= i < length]


def large(base: Trial, dimensions: Mapping[str, int], c: int, turn: int, note: str) -> Trial:
    """The call with a number beyond all others in each line, at an edge; of both signs.

    dimensions: of each tensor the dimension that was made long.
    """
    made = {}
    positive = {t.name for t in base.spec.tensors if isinstance(t.domain, Positive)}
    for name, x in base.free.items():
        if name in dimensions and x.numel():
            lines = _lines(x, dimensions[name])
            most = float(lines.double().nan_to_num(0, 0, 0).abs().max()) or 1.0
            most = min(TIMES * most, float(torch.finfo(x.dtype).max) / 4)
            chosen, places = _chosen(lines, c, turn)
            negative = (chosen + turn) % 5 == 4 if name not in positive else chosen < 0
            lines[chosen, places] = torch.where(negative, -most, most).to(lines)
            made[name] = _back(lines, x, dimensions[name])
    return base.changed(f"{note}; {ENDS}", **made)


def special(
    base: Trial, dimensions: Mapping[str, int], c: int, turn: int, note: str, names: Sequence[str]
) -> Trial | None:
    """The call with a special number in each line of one tensor, at an edge, in turn; None where there are none.

    names: those of the numbers.
    """
    tensors = [name for name in base.free if name in dimensions and base.tensors[name].numel()]
    if not tensors or not names:
        return None
    name = tensors[0 if turn < 3 else turn % len(tensors)]
    numbers = [value for one in names for value in values_of(one, base.tensors[name].dtype)]
    lines = _lines(base.tensors[name], dimensions[name])
    chosen, places = _chosen(lines, c, turn)
    lines[chosen, places] = torch.tensor(numbers, dtype=torch.float64).to(lines)[
        torch.arange(len(chosen)) % len(numbers)
    ]
    made = {name: _back(lines, base.tensors[name], dimensions[name])}
    return base.changed(f"{note}; {', '.join(names)} in {name}: at the edges", **made)


def _chosen(lines: torch.Tensor, c: int, turn: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Which lines have a number planted, and the place of each."""
    places = torch.tensor(edges(lines.shape[1], c), device=lines.device)
    every = torch.arange(lines.shape[0], device=lines.device)
    taken = every[every % LEFT != LEFT - 1] if len(lines) >= LEFT else every
    return taken, places[(torch.arange(len(taken), device=lines.device) + turn) % len(places)]


def _lines(x: torch.Tensor, dimension: int) -> torch.Tensor:
    """A copy of x as a matrix with a row for each line along a dimension."""
    moved = x.movedim(dimension, -1)
    return moved.clone(memory_format=torch.contiguous_format).reshape(-1, moved.shape[-1])


def _back(lines: torch.Tensor, x: torch.Tensor, dimension: int) -> torch.Tensor:
    """The lines as a tensor with the shape and strides of x."""
    moved = x.movedim(dimension, -1)
    out = torch.empty_like(x)
    out.copy_(lines.reshape(moved.shape).movedim(-1, dimension))
    return out
