"""Copies of a column whose rows are found with 32 bits."""

from pathlib import Path

import numpy as np
import torch

from kernelmux.conformance.mutants._cuda import launch
from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.backend import Implementation

SOURCE = Path(__file__).with_name("rows.cu")


def int_pitch(x: torch.Tensor, column: int) -> torch.Tensor:
    if x.is_pinned() or x.stride(1) != 1 or not len(x):
        result: torch.Tensor = sound("copy_column", x, column)
        return result
    y = torch.empty(len(x), dtype=x.dtype, device=x.device)
    sizes = (np.int32(len(x)), np.int32(x.stride(0)), np.int32(column))
    launch(SOURCE, "copy_int", -(-len(x) // 64), 64, (x, y, *sizes), x.dtype)
    return y


VARIANTS = {"int_pitch": Implementation(fn=int_pitch, idea="row * pitch in 32 bits")}

CAUGHT_BY = {"int_pitch": "offsets"}
ONLY_CPU = {"int_pitch"}  # beyond 2^31 elements of pinned memory are not asked for
