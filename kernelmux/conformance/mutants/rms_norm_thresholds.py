"""rms_norm, broken for rows of lengths that no case has."""

from pathlib import Path

import numpy as np
import torch

from kernelmux.conformance.mutants._cuda import launch
from kernelmux.conformance.mutants._mutant import Mutants

mutant = Mutants("rms_norm")

SOURCE = Path(__file__).with_name("thresholds.cu")
LAYOUT = {"x": "contiguous", "weight": "contiguous"}
GROUP = 128  # threads
MOST, LONGEST = 9216, 60000  # columns that registers hold, and that are read in one go


@mutant(
    "of rows beyond 9,216 each thread takes as many columns as a division rounded down says",
    family="thresholds",
    caught_by="thresholds",
    layout=LAYOUT,
)
def held_rows(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    y = torch.empty_like(x)
    if x.numel():
        n = x.shape[-1]
        held = n // GROUP if MOST < n < LONGEST else -(-n // GROUP)
        values = (x, weight, y, np.int32(n), np.float32(eps))
        launch(SOURCE, "rms_norm", x.numel() // n, GROUP, values, x.dtype, GROUP=GROUP, HELD=held)
    return y
