"""Matrix product whose K is divided among blocks."""

from pathlib import Path

import numpy as np
import torch

from kernelmux.conformance.mutants._batches import each
from kernelmux.conformance.mutants._cuda import launch
from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost

ORDERS = torch.Generator().manual_seed(0)
SOURCE = Path(__file__).with_suffix(".cu")


@each
def split_k(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    m, n, k = a.shape[0], b.shape[1], a.shape[1]
    c = torch.zeros(m, n, device=a.device, dtype=torch.float32)
    if a.numel() and b.numel():
        tiles = -(-n // 8)
        sizes = (np.int32(m), np.int32(n), np.int32(k), np.int32(tiles))
        launch(SOURCE, "split_k", (-(-m // 8) * tiles, -(-k // 64)), 64, (a, b, c, *sizes), a.dtype)
    return c.to(a.dtype)


@each
def few_rows(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """Few rows and a long K: its parts are added in an order by chance."""
    if len(a) > 16 or a.shape[1] < 2048:
        result: torch.Tensor = sound("matmul", a, b, precision)
        return result
    parts = [x.float() @ y.float() for x, y in zip(a.split(64, 1), b.split(64), strict=True)]
    total = torch.zeros(len(a), b.shape[1], device=a.device, dtype=torch.float32)
    for i in torch.randperm(len(parts), generator=ORDERS).tolist():
        total += parts[i]
    return torch.empty(total.shape, dtype=a.dtype, device=a.device).copy_(total)


VARIANTS = {
    "few_rows": Implementation(fn=few_rows, idea="parts of a long K come in an order by chance"),
    "split_k": Implementation(
        fn=split_k,
        idea="parts of K are added as they come",
        arithmetic="fp32_sequential",
        layout={"a": "contiguous", "b": "contiguous"},
        requires=(AtMost("K", 2**20),),
    ),
}

CAUGHT_BY = {"few_rows": "repeatability", "split_k": "repeatability"}
