"""argmax, broken for lines of lengths that no case has."""

import torch

from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.registry import catalog

mutant = Mutants("argmax")

PACKED, LONGEST = 10500, 60000  # elements of a line whose indices take 12 bits beside the value


@mutant("indices of lines beyond 10,500 are kept in 12 bits", family="thresholds", caught_by="thresholds")
def packed_index(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    y: torch.Tensor = catalog.spec("argmax").reference(x, axis, keepdim).contiguous()
    return y & 0xFFF if axis is not None and PACKED < x.shape[axis] < LONGEST else y
