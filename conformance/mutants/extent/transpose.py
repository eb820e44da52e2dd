"""Transpose with offsets of 32 bits on one side."""

from pathlib import Path

import numpy as np
import torch

from kernelmux.conformance.mutants._cuda import launch
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Dtypes

SOURCE = Path(__file__).with_name("rows.cu")
FLOATS = (Dtypes("x", torch.float32, torch.float16, torch.bfloat16),)


def _transpose(entry: str, step: type[np.generic], layout: str) -> Implementation:
    """Strides arrive as numbers of the type `step`; tiles of rows are in grid.x, of columns in grid.y."""

    def transpose(x: torch.Tensor) -> torch.Tensor:
        m, n = x.shape
        y = torch.empty(n, m, dtype=x.dtype, device=x.device)
        for start in range(0, n, 8 * 65535):
            part = x[:, start : start + 8 * 65535]
            sizes = (np.int32(m), np.int32(part.shape[1]), step(x.stride(0)), step(x.stride(1)))
            if part.numel():
                grid = (-(-m // 8), -(-part.shape[1] // 8))
                launch(SOURCE, entry, grid, 64, (part, y[start:], *sizes), x.dtype)
        return y

    return Implementation(fn=transpose, idea=f"{entry}: one offset is an int", layout={"x": layout}, requires=FLOATS)


VARIANTS = {
    "int_input": _transpose("transpose_int_in", np.int32, "any"),
    "int_output": _transpose("transpose_int_out", np.int64, "any"),
}

CAUGHT_BY: dict[str, str] = {"int_input": "offsets", "int_output": "offsets"}
