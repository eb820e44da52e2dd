"""Attention with every pair of batch and head in grid.z."""

from pathlib import Path

import numpy as np
import torch

from kernelmux.conformance.mutants._cuda import launch
from kernelmux.conformance.mutants.basics.attention import Pair, T
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost
from kernelmux.registry.spec.sliding_windows import Limit

SOURCE = Path(__file__).with_suffix(".cu")


def grid_z(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    """A thread per query."""
    y = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    batch, heads, m, d = q.shape
    if y.numel():
        sizes = [np.int32(n) for n in (heads, k.shape[1], m, k.shape[2], d, causal, window or 0)]
        grid = (-(-m // 32), 1, batch * heads)
        launch(SOURCE, "attention_z", grid, 32, (q, k, v, y, lse, *sizes, np.float32(scale)), q.dtype)
    return y, lse


PACKED = {"q": "contiguous", "k": "contiguous", "v": "contiguous"}
VARIANTS = {
    "grid_z": Implementation(
        fn=grid_z,
        idea="batch and head in grid.z",
        requires=(AtMost("D", 128),),
        layout=PACKED,
        arithmetic="fp32",
    )
}

CAUGHT_BY = {"grid_z": "extent"}
