"""Cases with one axis changed: of length one, or very long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kernelmux.conformance.trials import Trial, shown
from kernelmux.registry.cases import Case
from kernelmux.registry.spec import OpSpec

if TYPE_CHECKING:
    from kernelmux.conformance.probe import Probe


@dataclass(frozen=True)
class AxisName:
    """A symbolic axis of a spec: a letter, or place `index` of "..."."""

    letter: str
    index: int = 0

    def __str__(self) -> str:
        return f"axis {self.index} of ..." if self.letter == "..." else self.letter


def case_of(probe: Probe, trial: Trial) -> Case:
    """The case of a trial; one that stands in no list is read from its text."""
    return next((c for c in probe.cases if c.name == trial.case), probe.spec.case(trial.text))


def axes(spec: OpSpec, case: Case) -> list[AxisName]:
    """The axes of a case's tensors, each once, in the order in which they stand there."""
    return list(dict.fromkeys(name for t in spec.tensors for name in names(spec, case, t.name)))


def names(spec: OpSpec, case: Case, tensor: str) -> tuple[AxisName, ...]:
    """The axis that each dimension of a tensor is."""
    item = next(t for t in spec.tensors if t.name == tensor)
    letters = item.dims.split()
    lead = len(case.shapes[tensor]) - len(letters) + 1
    return tuple(_expanded(letters, lead))


def _expanded(letters: list[str], lead: int) -> Iterator[AxisName]:
    for letter in letters:
        yield from (AxisName("...", i) for i in range(lead)) if letter == "..." else (AxisName(letter),)


def resized(spec: OpSpec, case: Case, lengths: dict[AxisName, int]) -> Case:
    """The case with other lengths of some axes, in all tensors that have them."""
    words = []
    for tensor, shape in case.shapes.items():
        found = names(spec, case, tensor)
        words.append(f"{tensor}={shown([lengths.get(name, n) for name, n in zip(found, shape, strict=True)])}")
    words += [f"{name}={value}" for name, value in case.scalars.items()]
    return replace(case, text=" ".join(words))
