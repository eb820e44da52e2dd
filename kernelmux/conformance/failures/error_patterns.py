"""What wrong elements have in common: the line of a failure that names the likely bug."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

Tensor = torch.Tensor


def describe(wrong: Tensor, got: Tensor, ref: Tensor) -> str:
    """One line: how many elements are wrong, and the first pattern that explains them all."""
    count, total = int(wrong.sum()), wrong.numel()
    found = [line for rule in RULES if (line := rule(wrong, got.to(torch.float64), ref))]
    places = "; ".join(found[:2]) or "no pattern in their values or places"
    return f"{count} of {total} wrong: {places}"


def _nothing(wrong: Tensor, got: Tensor, ref: Tensor) -> str | None:
    return "all outputs are 0" if not got.any() and ref.any() else None


def _not_a_number(wrong: Tensor, got: Tensor, ref: Tensor) -> str | None:
    spread, lost = int((got.isnan() & ~ref.isnan()).sum()), int((ref.isnan() & ~got.isnan()).sum())
    if spread:
        return f"NaN in {spread} places where the reference has none"
    return f"NaN swallowed in {lost} places" if lost else None


def _factor(wrong: Tensor, got: Tensor, ref: Tensor) -> str | None:
    """got = c * ref: a sign, a missing scale, a mean in place of a sum."""
    ratio = (got / ref)[wrong & (ref != 0) & ref.isfinite() & got.isfinite()]
    if ratio.numel() < 3 or not ratio.isfinite().all():
        return None
    middle = float(ratio.median())
    if middle == 0 or abs(middle - 1) < 0.02 or float((ratio - middle).abs().max()) > 0.01 * abs(middle):
        return None
    return "all have the wrong sign" if abs(middle + 1) < 0.01 else f"all are {middle:.4g} times the reference"


def _shifted(wrong: Tensor, got: Tensor, ref: Tensor) -> str | None:
    for axis in range(got.dim()):
        for step in (1, -1):
            if got.shape[axis] > 2 and torch.allclose(got, ref.roll(step, axis), rtol=0.02, atol=1e-6):
                return f"the reference rolled by {step} along axis {axis}"
    return None


def _one_index(wrong: Tensor, indices: Tensor, axis: int) -> str | None:
    values = torch.unique(indices)
    return f"all at index {int(values[0])} of axis {axis}" if values.numel() == 1 and wrong.shape[axis] > 1 else None


def _tail(wrong: Tensor, indices: Tensor, axis: int) -> str | None:
    """All beyond the last multiple of a power of two: the mask of the last tile."""
    size, first = wrong.shape[axis], int(indices.min())
    tile = 1 << (size - 1).bit_length() - 1 if size > 1 else 0
    while tile >= 16 and not (size - size % tile <= first and size % tile):
        tile //= 2
    if tile < 16:
        return None
    return f"all at {first} or beyond on axis {axis} of length {size}, in the last incomplete tile of {tile}: tail mask"


def _every_nth(wrong: Tensor, indices: Tensor, axis: int) -> str | None:
    values = torch.unique(indices)
    steps = values.diff().unique()
    if values.numel() < 3 or steps.numel() != 1 or int(steps[0]) < 2:
        return None
    return f"every {int(steps[0])}th index of axis {axis}, from {int(values[0])}"


def _stretch(wrong: Tensor, indices: Tensor, axis: int) -> str | None:
    """All inside one stretch that takes at most half of the axis."""
    low, high, size = int(indices.min()), int(indices.max()), wrong.shape[axis]
    return f"all in {low}..{high} of axis {axis} (length {size})" if high - low + 1 <= size // 2 else None


PLACES: tuple[Callable[[Tensor, Tensor, int], str | None], ...] = (_one_index, _tail, _every_nth, _stretch)


def _places(wrong: Tensor, got: Tensor, ref: Tensor) -> str | None:
    """The strictest statement about places per axis, the last axis first."""
    if not wrong.any() or wrong.dim() == 0:
        return None
    indices = wrong.nonzero()
    lines = []
    for axis in reversed(range(wrong.dim())):
        lines += [line for rule in PLACES if (line := rule(wrong, indices[:, axis], axis))][:1]
    return ", ".join(lines) or None


def _bias(wrong: Tensor, got: Tensor, ref: Tensor) -> str | None:
    """Errors that all point the same way: truncation, or terms left out of a positive sum."""
    error = (got - ref)[wrong]
    error = error[error.isfinite()]
    if error.numel() < 8 or math.fabs(sign := float(error.sign().mean())) < 0.99:
        return None
    return f"{'all' if math.fabs(sign) == 1 else 'nearly all'} too {'large' if sign > 0 else 'small'}"


RULES = (_nothing, _not_a_number, _factor, _shifted, _places, _bias)
