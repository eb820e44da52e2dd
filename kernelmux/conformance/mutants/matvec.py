"""matvec, broken."""

from __future__ import annotations

import torch

from kernelmux.conformance.mutants._mutant import Mutants

mutant = Mutants("matvec")


# basics: Product of a weight with few vectors, broken.

Maybe = torch.Tensor | None
HELD = 16  # bytes of an access
WARPS = 8  # that share a row


@mutant("nothing is wrong with it", family="basics", name="sound")
def product(weight: torch.Tensor, x: torch.Tensor, scale: Maybe) -> torch.Tensor:
    sums = x.double() @ weight.double().mT
    return (sums if scale is None else sums * scale.double()).to(x.dtype).contiguous()


@mutant("takes the first scale for all rows", family="basics", caught_by="accuracy")
def scale_of_the_first_row(weight: torch.Tensor, x: torch.Tensor, scale: Maybe) -> torch.Tensor:
    return product(weight, x, scale if scale is None else scale[:1].expand(len(scale)))


@mutant("applies the scales along the wrong axis", family="basics", caught_by="accuracy")
def scaled_vectors(weight: torch.Tensor, x: torch.Tensor, scale: Maybe) -> torch.Tensor:
    """The scales along the vectors instead of the rows."""
    if scale is None or not len(scale):
        return product(weight, x, scale)
    along = scale.double()[torch.arange(len(x), device=x.device) % len(scale)]
    return (x.double() @ weight.double().mT * along[:, None]).to(x.dtype).contiguous()


@mutant("takes int8 for unsigned", family="basics", caught_by="accuracy")
def unsigned(weight: torch.Tensor, x: torch.Tensor, scale: Maybe) -> torch.Tensor:
    """Bytes without their sign."""
    return product(weight.view(torch.uint8) if weight.dtype == torch.int8 else weight, x, scale)


@mutant("leaves out the columns of an incomplete access", family="basics", caught_by="accuracy")
def tail_dropped(weight: torch.Tensor, x: torch.Tensor, scale: Maybe) -> torch.Tensor:
    """Columns beyond the last whole access."""
    whole = weight.shape[1] // HELD * HELD
    return product(weight[:, :whole], x[:, :whole], scale)


@mutant("knows eight vectors", family="basics", caught_by="accuracy")
def eight(weight: torch.Tensor, x: torch.Tensor, scale: Maybe) -> torch.Tensor:
    """The ninth vector and those after it are the first ones again."""
    return product(weight, x[torch.arange(len(x), device=x.device) % 8], scale)


@mutant("adds the sums of warps in 16 bits", family="basics", caught_by="accuracy")
def in_16_bits(weight: torch.Tensor, x: torch.Tensor, scale: Maybe) -> torch.Tensor:
    """Sums of the warps that share a row are added in the dtype of the result."""
    low = torch.bfloat16 if x.dtype == torch.float32 else x.dtype
    parts = zip(weight.double().chunk(WARPS, 1), x.double().chunk(WARPS, 1), strict=True)
    total = torch.zeros(len(x), len(weight), dtype=low, device=x.device)
    for w, v in parts:
        total = total + (v @ w.mT).to(low)
    return (total.double() if scale is None else total.double() * scale.double()).to(x.dtype).contiguous()
