"""Elementwise sum, broken as only kernels can be."""

from pathlib import Path

import numpy as np
import torch

from kernelmux.conformance.mutants._cuda import launch
from kernelmux.registry.backend import Implementation

SOURCE = Path(__file__).with_suffix(".cu")
BLOCK = 128


def _launch(x: torch.Tensor, y: torch.Tensor, entry: str) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        launch(SOURCE, entry, -(-x.numel() // BLOCK), BLOCK, (x, y, out, np.int64(x.numel())), x.dtype)
    return out


def _kernel(entry: str, idea: str) -> Implementation:
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return _launch(x, y, entry)

    return Implementation(fn=add, idea=idea, layout={"x": "contiguous", "y": "contiguous"})


VARIANTS = {
    "sound": _kernel("add_sound", "nothing is wrong with it"),
    "no_bound": _kernel("add_no_bound", "the last block reads and writes beyond the end"),
    "missing_barrier": _kernel("add_missing_barrier", "reads what a neighbour may not have written yet"),
    "uninitialised": _kernel("add_uninitialised", "reads shared memory that was never filled"),
    "racing_blocks": _kernel("add_racing_blocks", "two blocks write different values to one place"),
}

CAUGHT_BY = {
    "no_bound": "shapes",
    "missing_barrier": "accuracy",
    "uninitialised": "accuracy",
    "racing_blocks": "accuracy",
}

ONLY_CPU = {"no_bound", "missing_barrier", "uninitialised", "racing_blocks"}  # a GPU may well give the right sums
