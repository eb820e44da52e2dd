"""Ways to lay a tensor out in memory: same shape, other strides, offsets and overlaps; the gaps hold NaN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from kernelmux.candidate.allocations import Strides, contiguous_strides, extent, poisoned
from kernelmux.registry.dtypes import computes

# Values of a tensor whose elements share memory: eighths up to 4. A sum of equal terms has roundings that all point the
# same way, which no bound for independent ones covers; sums of these numbers, and of products of two, are exact in fp32.
GRID, LIMIT = 8, 4.0


def coarse(x: torch.Tensor) -> torch.Tensor:
    """Floating values on the grid, integers as they are."""
    return ((x.float() * GRID).round() / GRID).clamp(-LIMIT, LIMIT).to(x.dtype) if x.is_floating_point() else x


def laid_out(x: torch.Tensor, strides: Strides, offset: int = 0) -> torch.Tensor:
    """The values of x in a poisoned buffer of its own; where elements share memory, some of them, made `coarse`."""
    buffer = poisoned(offset + extent(x.shape, strides) + 16, x.dtype, x)
    view = buffer.as_strided(x.shape, strides, offset)
    if any(s == 0 for s, n in zip(strides, x.shape, strict=True) if n > 1) or _overlaps(x.shape, strides):
        flat = coarse(x).flatten()
        used = buffer[offset : offset + extent(x.shape, strides)]
        used.copy_(flat[: used.numel()])
    else:
        view.copy_(x)
    return view


def _overlaps(shape: Sequence[int], strides: Strides) -> bool:
    return extent(shape, strides) < torch.Size(shape).numel()


@dataclass(frozen=True)
class LayoutRule:
    """How to lay a tensor out: strides (and offset in elements) for a shape and item size, or None where those would be
    ordinary ones.

    same: the values stay those of the tensor, so that its reference holds. negated: memory holds the negative of each
    value, and the view has the negative bit, as the imaginary part of a conjugated tensor has; of 8-bit floats torch can
    read no such view.
    """

    name: str
    strides: Callable[[tuple[int, ...], int], tuple[Strides, int] | None]
    same: bool = True
    negated: bool = False

    def of(self, x: torch.Tensor) -> torch.Tensor | None:
        """x in this layout, or None."""
        made = self.strides(tuple(x.shape), x.element_size()) if x.numel() else None
        if made is None or (self.negated and not computes(x.dtype)):
            return None
        return torch._neg_view(laid_out(-x, *made)) if self.negated else laid_out(x, *made)


def _transposed(shape: tuple[int, ...], size: int) -> tuple[Strides, int] | None:
    if len(shape) < 2 or min(shape[-2:]) < 2:
        return None
    swapped = contiguous_strides((*shape[:-2], shape[-1], shape[-2]))
    return (*swapped[:-2], swapped[-1], swapped[-2]), 0


def _transposed_with_gap(shape: tuple[int, ...], size: int) -> tuple[Strides, int] | None:
    """Columns one after the other that lie further apart than they are long."""
    if len(shape) < 2 or min(shape[-2:]) < 2:
        return None
    swapped = contiguous_strides((*shape[:-2], shape[-1], shape[-2] + 3))
    return (*swapped[:-2], swapped[-1], swapped[-2]), 0


def _reversed_axes(shape: tuple[int, ...], size: int) -> tuple[Strides, int] | None:
    return (tuple(reversed(contiguous_strides(tuple(reversed(shape))))), 0) if len(shape) > 2 else None


def _channels_last(shape: tuple[int, ...], size: int) -> tuple[Strides, int] | None:
    if len(shape) != 4 or shape[1] < 2 or max(shape[2:]) < 2:
        return None
    n, h, w, c = contiguous_strides((shape[0], *shape[2:], shape[1]))
    return (n, c, h, w), 0


def _channels_last_with_gaps(shape: tuple[int, ...], size: int) -> tuple[Strides, int] | None:
    """Some channels of images that have more: torch calls them channels-last, `Output.order` does not."""
    if len(shape) != 4 or shape[1] < 2 or max(shape[2:]) < 2:
        return None
    n, h, w, c = contiguous_strides((shape[0], *shape[2:], shape[1] + 3))
    return (n, c, h, w), 0


def _every_second(shape: tuple[int, ...], size: int) -> tuple[Strides, int] | None:
    return (tuple(2 * s for s in contiguous_strides(shape)), 0) if shape and shape[-1] > 1 else None


def _second_rows(shape: tuple[int, ...], size: int) -> tuple[Strides, int] | None:
    strides = contiguous_strides(shape)
    return ((2 * strides[0], *strides[1:]), 0) if len(shape) > 1 and shape[0] > 1 else None


def _odd_pitch(shape: tuple[int, ...], size: int) -> tuple[Strides, int] | None:
    """Rows three elements apart: rows begin at every address modulo 16."""
    return (contiguous_strides((*shape[:-1], shape[-1] + 3)), 0) if len(shape) > 1 else None


def _wide_pitch(shape: tuple[int, ...], size: int) -> tuple[Strides, int] | None:
    """Rows with a gap that keeps them aligned to 16 bytes."""
    if len(shape) < 2:
        return None
    unit = 16 // size
    return contiguous_strides((*shape[:-1], -(-shape[-1] // unit) * unit + unit)), 0


def _two_pitches(shape: tuple[int, ...], size: int) -> tuple[Strides, int] | None:
    """Gaps behind every row, every matrix and all above, aligned: no pitch follows from another, or from the shape."""
    if len(shape) < 3:
        return None
    unit = 16 // size
    return contiguous_strides((*(n + 1 for n in shape[:-1]), -(-shape[-1] // unit) * unit + 2 * unit)), 0


def _matrices_apart(shape: tuple[int, ...], size: int) -> tuple[Strides, int] | None:
    """A gap of one row behind every matrix, as a slice of a longer one has."""
    return (contiguous_strides((*shape[:-2], shape[-2] + 1, shape[-1])), 0) if len(shape) > 2 else None


def _every_element(shape: tuple[int, ...], size: int) -> tuple[Strides, int] | None:
    return contiguous_strides(shape), 0


def _misaligned(modulo: int) -> Callable[[tuple[int, ...], int], tuple[Strides, int] | None]:
    def strides(shape: tuple[int, ...], size: int) -> tuple[Strides, int] | None:
        return (contiguous_strides(shape), modulo // size) if modulo % size == 0 else None

    return strides


def _expanded_rows(shape: tuple[int, ...], size: int) -> tuple[Strides, int] | None:
    strides = contiguous_strides(shape)
    return ((0, *strides[1:]), 0) if shape and shape[0] > 1 else None


def _expanded_columns(shape: tuple[int, ...], size: int) -> tuple[Strides, int] | None:
    return ((*contiguous_strides(shape[:-1]), 0), 0) if len(shape) > 1 and shape[-1] > 1 else None


def _expanded_everywhere(shape: tuple[int, ...], size: int) -> tuple[Strides, int] | None:
    return ((0,) * len(shape), 0) if len(shape) > 1 and min(shape) > 1 else None


def _windows(shape: tuple[int, ...], size: int) -> tuple[Strides, int] | None:
    """Each row begins one element after the one above: a sliding window."""
    if len(shape) < 2 or shape[-2] < 2:
        return None
    inner = contiguous_strides((*shape[:-2], shape[-2] + shape[-1]))[:-1]
    return (*inner, 1, 1), 0


LAYOUTS = (
    LayoutRule("transposed", _transposed),
    LayoutRule("transposed with a gap", _transposed_with_gap),
    LayoutRule("axes reversed", _reversed_axes),
    LayoutRule("every second element", _every_second),
    LayoutRule("every second row", _second_rows),
    LayoutRule("rows 3 elements apart", _odd_pitch),
    LayoutRule("rows with an aligned gap", _wide_pitch),
    LayoutRule("rows and matrices with gaps of their own", _two_pitches),
    LayoutRule("matrices one row apart", _matrices_apart),
    LayoutRule("negative bit", _every_element, negated=True),
    LayoutRule("negative bit, every second element", _every_second, negated=True),
    LayoutRule("address 2 modulo 16", _misaligned(2)),
    LayoutRule("address 4 modulo 16", _misaligned(4)),
    LayoutRule("address 8 modulo 16", _misaligned(8)),
    LayoutRule("first axis expanded", _expanded_rows, same=False),
    LayoutRule("last axis expanded", _expanded_columns, same=False),
    LayoutRule("every axis expanded", _expanded_everywhere, same=False),
    LayoutRule("sliding windows", _windows, same=False),
    LayoutRule("channels last", _channels_last),
    LayoutRule("channels last with gaps", _channels_last_with_gaps),
)
