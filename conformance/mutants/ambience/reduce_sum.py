"""Sum that autocast changes."""

import torch

from kernelmux.registry.backend import Implementation


def by_product(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """The product with a vector of ones, which autocast turns into one of 16 bits."""
    flat = x.reshape(-1) if axis is None else x.movedim(axis, -1)
    wide = flat.float()
    rows = wide.reshape(-1, wide.shape[-1]) if wide.dim() > 1 else wide.reshape(1, -1)
    total = torch.matmul(rows, torch.ones(rows.shape[1], 1, dtype=torch.float32, device=x.device))
    shape = list(x.shape)
    for i in range(x.dim()) if axis is None else (axis,):
        shape[i] = 1
    if not keepdim:
        shape = [] if axis is None else [n for i, n in enumerate(x.shape) if i != axis]
    return total.reshape(shape).to(x.dtype).contiguous()


VARIANTS = {
    "by_product": Implementation(
        fn=by_product, idea="multiplies by ones in the precision of autocast", arithmetic="fp32_sequential"
    ),
}

CAUGHT_BY = {"by_product": "ambience"}
