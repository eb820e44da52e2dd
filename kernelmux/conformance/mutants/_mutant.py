"""How a file of mutants tells of them: `@mutant(idea, family=..., caught_by=...)` over a broken kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from kernelmux.registry.backend import Implementation

F = TypeVar("F", bound=Callable[..., Any])

FAMILIES = {
    "ambience": "What surrounds a call: default dtype and device, modes, flags, random generators.",
    "basics": "Wrong results and wrong memory: masks, accumulators, axes, inputs and outputs.",
    "bits": "Bits that the spec defines: the sign of zero, subnormal numbers, overflow, the payload of a NaN.",
    "cards": "Kernels that are right on the GPU they were written on, and that other cards cannot have.",
    "claims": "What a variant declares of itself, and what it returns.",
    "edges": "Row-wise kernels in Triton whose rows end at the wrong place, or that leave out a term.",
    "extent": "Grids that end at 65,535 in y and z, and offsets that end at 2^31.",
    "order": "Sums in an order that changes: by atomics, by the arrival of blocks, by chance, where they are long.",
    "properties": "Right call by call, but not in what the spec says of several: rows that know of others, shifts, orders.",
    "scalars": "Scalars at another value than their default: zero, negative, small, large.",
    "selection": "Kernels that look at who was asked to run a call, and take another path.",
    "shapes": "Equal axes, axes of length one, pitches, one tensor given twice, outputs that are views.",
    "state": "State between calls: results, scratch, packed operands and plans, remembered, shared or never let go.",
    "thresholds": "Paths that begin at a size which no case has: in a launcher, in a kernel, in what it is compiled with.",
    "tiles": "CUDA kernels with tiles that the threads of a block share: borders, strides, barriers, last tiles.",
}


@dataclass(frozen=True)
class MutantVariant:
    """A variant of the backend of its family; the fields are those of `Mutants.add`."""

    family: str
    variant: str
    implementation: Implementation
    caught_by: str
    only: str
    shown_by: str


class Mutants:
    """The mutants of an operator in one file, in the order of their ladders."""

    def __init__(self, op: str) -> None:
        self.op = op
        self.found: list[MutantVariant] = []

    def __call__(
        self,
        idea: str,
        *,
        family: str,
        caught_by: str = "",
        only: str = "",
        shown_by: str = "",
        name: str = "",
        **fields: Any,
    ) -> Callable[[F], F]:
        """A function is a mutant, under its name or another; fields: of its `Implementation`."""

        def added(fn: F) -> F:
            made = Implementation(fn=fn, idea=idea, **fields)
            self.add(name or fn.__name__, made, family=family, caught_by=caught_by, only=only, shown_by=shown_by)
            return fn

        return added

    def add(
        self,
        variant: str,
        made: Implementation,
        *,
        family: str,
        caught_by: str = "",
        only: str = "",
        shown_by: str = "",
    ) -> None:
        """One more mutant.

        caught_by: the check of a broken one; "" of a sound one, which every check must pass. only: "cpu" or "cuda" where
        the defect can show on the emulator alone, or on a GPU alone. shown_by: the case that shows the defect, where that
        is of a tier beyond ci.
        """
        assert family in FAMILIES and only in ("", "cpu", "cuda"), (self.op, variant, family, only)
        assert not any((m.family, m.variant) == (family, variant) for m in self.found), (self.op, family, variant)
        self.found.append(MutantVariant(family, variant, made, caught_by, only, shown_by))
