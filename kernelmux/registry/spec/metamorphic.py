"""What holds between the results of several calls, beside what each of them is.

Every implementation gives equal bits for equal calls unless it declares `deterministic=False`; these are said by a spec.
An implementation may be exempt from one, with the reason (`Implementation.exempt`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BatchInvariant:
    """The bits of a row depend neither on other rows, nor on how many there are, nor on its place among them.

    axes: those that count rows, letters or "...". Outputs in which rows meet, such as the gradient of a weight, are not
    asked, nor are calls along another axis than the last: there the tiles of a kernel lie across lines, and may follow
    their number.
    """

    axes: tuple[str, ...] = ("...",)


@dataclass(frozen=True)
class ShiftInvariant:
    """A number added to all of `tensor` along the axis of the call changes nothing but roundings."""

    tensor: str


@dataclass(frozen=True)
class PermutationInvariant:
    """What is permuted in `tensor` along the axis of the call is permuted in the outputs that have this axis.

    Other outputs stay as they are.
    """

    tensor: str


Property = BatchInvariant | ShiftInvariant | PermutationInvariant
