"""Matrix product whose K is divided among blocks."""

from pathlib import Path

import numpy as np
import torch

from kernelmux.conformance.mutants._cuda import launch
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost

SOURCE = Path(__file__).with_suffix(".cu")


def split_k(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    m, n, k = a.shape[0], b.shape[1], a.shape[1]
    c = torch.zeros(m, n, device=a.device, dtype=torch.float32)
    if a.numel() and b.numel():
        tiles = -(-n // 8)
        sizes = (np.int32(m), np.int32(n), np.int32(k), np.int32(tiles))
        launch(SOURCE, "split_k", (-(-m // 8) * tiles, -(-k // 64)), 64, (a, b, c, *sizes), a.dtype)
    return c.to(a.dtype)


VARIANTS = {
    "split_k": Implementation(
        fn=split_k,
        idea="parts of K are added as they come",
        arithmetic="fp32_sequential",
        layout={"a": "contiguous", "b": "contiguous"},
        requires=(AtMost("K", 2**20),),
    )
}

CAUGHT_BY = {"split_k": "repeatability"}
