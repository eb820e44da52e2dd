"""reduce_sum: the sum along one axis or of everything, accumulated in fp32, rounded once.

rows   one program per tile of rows walks the whole axis
split  an axis with too few rows to fill the GPU is cut into chunks, summed to fp32, then summed again
"""

from __future__ import annotations

import torch

from kernelmux.backends.triton._families.reductions import reduce
from kernelmux.backends.triton._families.sums import SUM
from kernelmux.registry.backend import Implementation


def reduce_sum_rows(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    return reduce(SUM, x, axis, keepdim, split=False)


def reduce_sum_split(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    return reduce(SUM, x, axis, keepdim)


VARIANTS = {
    "rows": Implementation(fn=reduce_sum_rows, idea="one program walks the axis for a tile of rows"),
    "split": Implementation(fn=reduce_sum_split, idea="long axes in chunks, then the chunks: no atomics"),
}
