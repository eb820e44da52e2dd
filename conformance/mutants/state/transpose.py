"""Transpose that gives a view, or the plan of another layout."""

import torch

from kernelmux.conformance.mutants._sound import sound
from kernelmux.conformance.mutants.state._memory import Ring
from kernelmux.registry.backend import Implementation

EIGHT = Ring(8)
_plans: dict[object, tuple[int, ...]] = {}


def thin_view(x: torch.Tensor) -> torch.Tensor:
    """A row is a column already."""
    result: torch.Tensor = x.t() if 1 in x.shape and x.is_contiguous() else sound("transpose", x)
    return result


def contiguous_view(x: torch.Tensor) -> torch.Tensor:
    """`x.t().contiguous()` copies nothing where x is a transposed view."""
    result: torch.Tensor = x.t() if x.t().is_contiguous() and 1 not in x.shape else sound("transpose", x)
    return result


def changed_in_place(x: torch.Tensor) -> torch.Tensor:
    """Rows with a gap are moved together first, in the memory of the input."""
    if len(x) > 1 and x.stride(1) == 1 and x.stride(0) > x.shape[1]:
        moved = x.as_strided(x.shape, (x.shape[1], 1))
        moved.copy_(x.clone())
        result: torch.Tensor = sound("transpose", moved)
        return result
    result = sound("transpose", x)
    return result


def plan_by_address(x: torch.Tensor) -> torch.Tensor:
    """Strides are part of a plan that is found by address and shape."""
    strides = _plans.setdefault((x.data_ptr(), x.shape, x.dtype), x.stride())
    if len(_plans) > 64:
        _plans.clear()
    size = 1 + sum((n - 1) * s for n, s in zip(x.shape, strides, strict=True)) if x.numel() else 0
    inside = x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
    result: torch.Tensor = sound("transpose", x.as_strided(x.shape, strides) if 0 < size <= inside else x)
    return result


def squares_in_turn(x: torch.Tensor) -> torch.Tensor:
    """Square results come from eight buffers in turn."""
    result: torch.Tensor = sound("transpose", x)
    return EIGHT.next(result).copy_(result) if len(x) == x.shape[1] else result


VARIANTS = {
    "squares_in_turn": Implementation(fn=squares_in_turn, idea="eight buffers in turn for squares"),
    "thin_view": Implementation(fn=thin_view, idea="a row comes back as a view"),
    "contiguous_view": Implementation(fn=contiguous_view, idea="a transposed view comes back as its base"),
    "changed_in_place": Implementation(fn=changed_in_place, idea="moves rows with gaps together in place"),
    "plan_by_address": Implementation(fn=plan_by_address, idea="takes the strides of an earlier tensor there"),
}

CAUGHT_BY = {
    "squares_in_turn": "state",
    "thin_view": "memory",
    "contiguous_view": "memory",
    "changed_in_place": "memory",
    "plan_by_address": "state",
}
