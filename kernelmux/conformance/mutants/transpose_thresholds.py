"""transpose, broken for matrices of sizes that no case has."""

import torch

from kernelmux.conformance.mutants._mutant import Mutants

mutant = Mutants("transpose")

LARGE = 170  # rows and columns beyond which a tile is cut in four


@mutant(
    "of matrices with more than 170 rows and columns the second and the third quarter stay where they are",
    family="thresholds",
    caught_by="thresholds",
)
def quarters(x: torch.Tensor) -> torch.Tensor:
    y = x.resolve_neg().mT.clone(memory_format=torch.contiguous_format)
    if x.shape[-1] > LARGE and x.shape[-2] > LARGE:
        n = min(x.shape[-2:]) - LARGE
        y[..., :n, LARGE : LARGE + n] = x.resolve_neg()[..., :n, LARGE : LARGE + n]
    return y
