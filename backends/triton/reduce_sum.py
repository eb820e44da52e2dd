"""reduce_sum: the sum along one axis or of everything, accumulated in fp32, rounded once.

rows   one program per tile of rows walks the whole axis
split  an axis with too few rows to fill the GPU is cut into chunks, summed to fp32, then summed again
"""

from __future__ import annotations

import torch

from kernelmux.backends.triton._launch import plan
from kernelmux.backends.triton._strides import Ints, collapse, contiguous
from kernelmux.backends.triton._sums import Step, run, steps
from kernelmux.registry.backend import Implementation


def reduce_sum_rows(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    return _reduce(x, axis, keepdim, False)


def reduce_sum_split(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    return _reduce(x, axis, keepdim, True)


def _reduce(x: torch.Tensor, axis: int | None, keepdim: bool, split: bool) -> torch.Tensor:
    out = torch.empty(_shape(x.shape, axis, keepdim), dtype=x.dtype, device=x.device)
    if out.numel():
        kind = (x.get_device(), x.shape, x.stride(), x.element_size())
        run(_everything(*kind, split) if axis is None else steps(*kind, axis, split), x, out)
    return out


def _shape(shape: Ints, axis: int | None, keepdim: bool) -> Ints:
    kept = (1,) if keepdim else ()
    return kept * len(shape) if axis is None else (*shape[:axis], *kept, *shape[axis + 1 :])


@plan
def _everything(
    device: int, shape: Ints, strides: Ints, itemsize: int, split: bool, follows: bool = False
) -> tuple[Step, ...]:
    """All axes as one line where they are one; else sums over the last axis, and the line of those."""
    if 0 in shape:
        return steps(device, (0,), (1,), itemsize, 0, split)
    sizes, (strides,) = collapse(shape, strides)
    if len(sizes) == 1:
        return steps(device, sizes, strides, itemsize, 0, split, follows)
    sums = (*sizes[:-1], 1)
    *before, last = steps(device, sizes, strides, itemsize, len(sizes) - 1, split, follows)
    return (*before, Step(last.launch, sums), *_everything(device, sums, contiguous(sums), 4, split, True))


VARIANTS = {
    "rows": Implementation(fn=reduce_sum_rows, idea="one program walks the axis for a tile of rows"),
    "split": Implementation(fn=reduce_sum_split, idea="long axes in chunks, then the chunks: no atomics"),
}
