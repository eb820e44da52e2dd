"""reduce_max, broken for lines of lengths that no case has."""

import torch

from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.conformance.mutants._sound import sound

mutant = Mutants("reduce_max")

SPLIT, LONGEST = 11000, 60000  # elements of a line: longer ones are split, the longest another way


@mutant(
    "lines beyond 11,000 are split in two halves, which leaves the last one of an odd number out",
    family="thresholds",
    caught_by="thresholds",
)
def halves(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    if axis is not None and SPLIT < x.shape[axis] < LONGEST:
        x = x.narrow(axis, 0, x.shape[axis] // 2 * 2)
    y: torch.Tensor = sound("reduce_max", x, axis, keepdim)
    return y
