"""Product of 8-bit floats, broken."""

from __future__ import annotations

import torch

from kernelmux.registry import dtypes
from kernelmux.registry.backend import Implementation
from kernelmux.registry.ops.fp8_matmul import BLOCK, spread

STEP = 32  # of K in an instruction
Tensor = torch.Tensor


def sound(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, out_dtype: str, accumulation: str) -> Tensor:
    left, right = a.double() * spread(scale_a, *a.shape), b.double() * spread(scale_b, *b.shape)
    return (left @ right).to(dtypes.parse(out_dtype)).contiguous()


def scales_along_the_wrong_axis(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, out_dtype: str, accumulation: str
) -> Tensor:
    """Scales of blocks as if the other axis were the contiguous one."""
    scale_a, scale_b = (x.mT.reshape(x.shape) if x.dim() else x for x in (scale_a, scale_b))
    return sound(a, b, scale_a, scale_b, out_dtype, accumulation)


def last_scale_reused(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, out_dtype: str, accumulation: str
) -> Tensor:
    """An incomplete last block of K has the scale of the one before."""
    if a.shape[1] % BLOCK and scale_a.dim() and scale_a.shape[1] > 1:
        scale_a = torch.cat([scale_a[:, :-1], scale_a[:, -2:-1]], 1)
    return sound(a, b, scale_a, scale_b, out_dtype, accumulation)


def never_promoted(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, out_dtype: str, accumulation: str) -> Tensor:
    """As Hopper's tensor cores add: every step cuts its terms and the sum so far to 13 bits below the largest of them."""
    blocks = any(scale.dim() and min(scale.shape) > 1 for scale in (scale_a, scale_b))
    if accumulation == "fast" or blocks:
        return sound(a, b, scale_a, scale_b, out_dtype, accumulation)
    total = a.new_zeros((a.shape[0], 1, b.shape[1]), dtype=torch.float64)
    for k in range(0, a.shape[1], STEP):
        products = a[:, k : k + STEP].double()[:, :, None] * b[k : k + STEP].double()[None]
        terms = torch.cat([total, products], 1)
        unit = torch.ldexp(torch.ones_like(total), torch.frexp(terms.abs().amax(1, keepdim=True)).exponent - 14)
        total = (terms / unit).trunc().sum(1, keepdim=True) * unit
    return (total[:, 0] * scale_a * scale_b).to(dtypes.parse(out_dtype)).contiguous()


def e5m2_as_e4m3(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, out_dtype: str, accumulation: str) -> Tensor:
    a, b = a.view(torch.float8_e4m3fn), b.view(torch.float8_e4m3fn)
    return sound(a, b, scale_a, scale_b, out_dtype, accumulation)


def one_block_as_columns(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, out_dtype: str, accumulation: str
) -> Tensor:
    """Where K is a single block, the scales of its blocks along N are taken for those of columns."""
    if scale_b.dim() and scale_b.shape[0] == 1:
        scale_b = scale_b[:, torch.arange(b.shape[1], device=b.device).clamp(max=scale_b.shape[1] - 1)]
    return sound(a, b, scale_a, scale_b, out_dtype, accumulation)


VARIANTS = {
    "sound": Implementation(sound, "nothing is wrong with it", arithmetic="mma"),
    "scales_along_the_wrong_axis": Implementation(
        scales_along_the_wrong_axis, "takes scales of blocks along the other axis", arithmetic="mma"
    ),
    "last_scale_reused": Implementation(last_scale_reused, "reuses a scale in the last block of K", arithmetic="mma"),
    "never_promoted": Implementation(never_promoted, "adds up in the tensor core alone", arithmetic="mma"),
    "one_block_as_columns": Implementation(
        one_block_as_columns, "takes the scales of one row of blocks for those of columns", arithmetic="mma"
    ),
    "e5m2_as_e4m3": Implementation(e5m2_as_e4m3, "takes e5m2 for e4m3", arithmetic="mma"),
}

CAUGHT_BY = {name: "accuracy" for name in VARIANTS if name != "sound"} | {"one_block_as_columns": "shapes"}
