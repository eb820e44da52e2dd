"""layer_norm, broken for rows of lengths that no case has."""

import torch

from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.conformance.mutants._sound import sound

mutant = Mutants("layer_norm")

Maybe = torch.Tensor | None
STREAMED = 9500  # columns of a row that does not stay on the multiprocessor


@mutant("rows beyond 9,500 are read through a comparison that loses NaN", family="thresholds", caught_by="thresholds")
def lost_nan(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, eps: float) -> torch.Tensor:
    kept = torch.where(x.isnan(), 0, x) if STREAMED < x.shape[-1] < 60000 else x
    y: torch.Tensor = sound("layer_norm", kept, weight, bias, eps)
    return y
