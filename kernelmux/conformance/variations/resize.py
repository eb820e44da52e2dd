"""Cases with one axis changed: of length one, or very long."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kernelmux.conformance.inputs import generate
from kernelmux.conformance.inputs.trials import Trial, shown
from kernelmux.registry.cases import Case, written
from kernelmux.registry.spec import OpSpec, Scalar

if TYPE_CHECKING:
    from kernelmux.conformance.judging.probe import Probe

LONGEST = 512  # side of a kernel that follows from the images: references take a step for each of its elements


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
    """The axis that each dimension of a tensor is; none for a tensor that is left out."""
    item = next(t for t in spec.tensors if t.name == tensor)
    return tuple(map(_axis, item.named(case.shapes[tensor]))) if tensor in case.shapes else ()


def _axis(name: str) -> AxisName:
    return AxisName("...", int(name[3:])) if name.startswith("...") else AxisName(name)


def resized(spec: OpSpec, case: Case, lengths: dict[AxisName, int]) -> Case:
    """The case with other lengths of some axes, in all tensors that have them."""
    words = []
    for tensor, shape in case.shapes.items():
        found = names(spec, case, tensor)
        words.append(f"{tensor}={shown([lengths.get(name, n) for name, n in zip(found, shape, strict=True)])}")
    words += [f"{name}={written(value)}" for name, value in case.scalars.items()]
    return replace(case, text=" ".join(words))


def fitted(spec: OpSpec, case: Case) -> Case:
    """The case with those scalars that follow from its shapes; itself where that is a kernel with a side of `LONGEST`."""
    made = generate.refitted(spec, case)
    kernels = (i.name for i in spec.scalars if isinstance(i, Scalar) and i.fit and i.length and not i.extent)
    return case if any(max(made.scalars.get(name, (0,))) > LONGEST for name in kernels) else made
