"""Which dtypes a call is asked for in: in turn, where not in all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch


def ordered(allowed: list[torch.dtype], turn: int) -> list[torch.dtype]:
    """The dtypes, beginning with the one whose turn it is."""
    start = turn % len(allowed) if allowed else 0
    return allowed[start:] + allowed[:start]


def able(order: list[torch.dtype], runs: Callable[[torch.dtype], bool]) -> Iterator[torch.dtype]:
    """Those that run; the first of all if there is none."""
    found = filter(runs, order)
    yield next(found, order[0])
    yield from found


def of_each_size(found: Iterable[torch.dtype]) -> Iterator[torch.dtype]:
    """The first dtype of each kind (floating or not) and size: fp16 and bf16 take the same path through a kernel."""
    yield from {(d.is_floating_point, d.itemsize): d for d in reversed(list(found))}.values()


def both(some: Sequence[torch.dtype], others: Sequence[torch.dtype]) -> tuple[torch.dtype, ...]:
    """Those of `some` that are among `others`."""
    return tuple(dtype for dtype in some if dtype in others)
