"""add, broken for numbers of elements that no case has."""

from pathlib import Path

import numpy as np
import torch

from kernelmux.conformance.mutants._cuda import launch
from kernelmux.conformance.mutants._mutant import Mutants

mutant = Mutants("add")

SOURCE = Path(__file__).with_name("thresholds.cu")
LAYOUT = {"x": "contiguous", "y": "contiguous"}


@mutant(
    "the last incomplete four of 21,000 elements and more are forgotten",
    family="thresholds",
    caught_by="thresholds",
    layout=LAYOUT,
)
def forgotten_end(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    if n := x.numel():
        launch(SOURCE, "add", -(-n // 128), 128, (x, y, out, np.int64(n)), x.dtype, GROUP=128, HELD=1)
    return out
