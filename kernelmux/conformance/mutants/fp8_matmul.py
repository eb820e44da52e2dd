"""fp8_matmul, broken."""

from __future__ import annotations

import torch

from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.registry import dtypes
from kernelmux.registry.ops.fp8_matmul import BLOCK, spread

mutant = Mutants("fp8_matmul")


# basics: Product of 8-bit floats, broken.

STEP = 32  # of K in an instruction
Tensor = torch.Tensor


@mutant("nothing is wrong with it", family="basics", arithmetic="mma")
def sound(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, out_dtype: str, accumulation: str) -> Tensor:
    left, right = a.double() * spread(scale_a, *a.shape), b.double() * spread(scale_b, *b.shape)
    return (left @ right).to(dtypes.parse(out_dtype)).contiguous()


@mutant("takes scales of blocks along the other axis", family="basics", caught_by="accuracy", arithmetic="mma")
def scales_along_the_wrong_axis(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, out_dtype: str, accumulation: str
) -> Tensor:
    """Scales of blocks as if the other axis were the contiguous one."""
    scale_a, scale_b = (x.mT.reshape(x.shape) if x.dim() else x for x in (scale_a, scale_b))
    return sound(a, b, scale_a, scale_b, out_dtype, accumulation)


@mutant("reuses a scale in the last block of K", family="basics", caught_by="accuracy", arithmetic="mma")
def last_scale_reused(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, out_dtype: str, accumulation: str
) -> Tensor:
    """An incomplete last block of K has the scale of the one before."""
    if a.shape[1] % BLOCK and scale_a.dim() and scale_a.shape[1] > 1:
        scale_a = torch.cat([scale_a[:, :-1], scale_a[:, -2:-1]], 1)
    return sound(a, b, scale_a, scale_b, out_dtype, accumulation)


@mutant("adds up in the tensor core alone", family="basics", caught_by="accuracy", arithmetic="mma")
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


@mutant(
    "takes the scales of one row of blocks for those of columns", family="basics", caught_by="shapes", arithmetic="mma"
)
def one_block_as_columns(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, out_dtype: str, accumulation: str
) -> Tensor:
    """Where K is a single block, the scales of its blocks along N are taken for those of columns."""
    if scale_b.dim() and scale_b.shape[0] == 1:
        scale_b = scale_b[:, torch.arange(b.shape[1], device=b.device).clamp(max=scale_b.shape[1] - 1)]
    return sound(a, b, scale_a, scale_b, out_dtype, accumulation)


@mutant("takes e5m2 for e4m3", family="basics", caught_by="accuracy", arithmetic="mma")
def e5m2_as_e4m3(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, out_dtype: str, accumulation: str) -> Tensor:
    a, b = a.view(torch.float8_e4m3fn), b.view(torch.float8_e4m3fn)
    return sound(a, b, scale_a, scale_b, out_dtype, accumulation)
