"""Transpose by blocks that draw their tiles; sound."""

from pathlib import Path

import numpy as np
import torch

from kernelmux.conformance.mutants._cuda import launch
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Dtypes

SOURCE = Path(__file__).with_suffix(".cu")


def drawn_tiles(x: torch.Tensor) -> torch.Tensor:
    m, n = x.shape
    y = torch.empty(n, m, dtype=x.dtype, device=x.device)
    if x.numel():
        counter, tiles = torch.zeros(1, dtype=torch.int32, device=x.device), -(-n // 8)
        args = (x, y, counter, np.int32(m), np.int32(n), np.int32(tiles))
        launch(SOURCE, "transpose_drawn", -(-m // 8) * tiles, 64, args, x.dtype)
    return y


VARIANTS = {
    "drawn_tiles": Implementation(
        fn=drawn_tiles,
        idea="blocks draw the numbers of their tiles",
        layout={"x": "contiguous"},
        requires=(Dtypes("x", torch.float32, torch.float16, torch.bfloat16),),
    )
}

CAUGHT_BY: dict[str, str] = {}
