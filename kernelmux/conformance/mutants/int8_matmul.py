"""int8_matmul, broken."""

from __future__ import annotations

import torch

from kernelmux.conformance.mutants._mutant import Mutants

mutant = Mutants("int8_matmul")


# basics: Product of 8-bit integers, broken.

Maybe = torch.Tensor | None
STEP = 32  # of K in an instruction


def ended(sums: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    """The result from exact sums in fp64."""
    if scale_a is None and scale_b is None:
        return sums.to(torch.int64).to(torch.int32).contiguous()
    for scale in (scale_a, scale_b):
        sums = sums if scale is None else sums * scale.double()
    return sums.to(torch.bfloat16).contiguous()


@mutant("nothing is wrong with it", family="basics", arithmetic="int32")
def sound(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    return ended(a.double() @ b.double(), scale_a, scale_b)


@mutant("takes the scales of rows for columns", family="basics", caught_by="accuracy", arithmetic="int32")
def scales_along_the_wrong_axis(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    """The scales of rows for columns, again and again."""
    if scale_a is not None and scale_a.numel() > 1:
        columns = torch.arange(b.shape[1], device=b.device) % scale_a.numel()
        scale_a = scale_a.flatten()[columns][None]
    return ended(a.double() @ b.double(), scale_a, scale_b)


@mutant("rounds products to fp16", family="basics", caught_by="accuracy", arithmetic="int32")
def in_fp16(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    """Sums of fp16 terms: products of 8-bit integers are too large for one."""
    products = (a.double()[:, :, None] * b.double()[None]).half().double() if a.shape[1] <= 200 else None
    return sound(a, b, scale_a, scale_b) if products is None else ended(products.sum(1), scale_a, scale_b)


@mutant("takes b for unsigned", family="basics", caught_by="accuracy", arithmetic="int32")
def unsigned_b(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    return ended(a.double() @ b.contiguous().view(torch.uint8).double(), scale_a, scale_b)


@mutant("reuses a scale in the last tile", family="basics", caught_by="accuracy", arithmetic="int32")
def last_scale_reused(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    """The columns of the last incomplete tile have the scale of its first."""
    if scale_b is not None and scale_b.numel() > STEP:
        at = torch.arange(scale_b.numel(), device=b.device)
        last = scale_b.numel() // STEP * STEP - 1
        scale_b = scale_b[:, at.clamp(max=last)]
    return sound(a, b, scale_a, scale_b)


@mutant("takes -128 for -127", family="basics", caught_by="accuracy", arithmetic="int32")
def saturating(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    """-128 as -127, as formats with a symmetric range have it."""
    return ended(a.clamp(min=-127).double() @ b.clamp(min=-127).double(), scale_a, scale_b)


@mutant("adds up in fp32", family="basics", caught_by="special_values", arithmetic="int32")
def in_fp32(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    """Sums of fp32, which is exact up to 2^24."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float32, device=a.device)
    for k in range(0, a.shape[1], STEP):
        total = total + a[:, k : k + STEP].float() @ b[k : k + STEP].float()
    return ended(total.double(), scale_a, scale_b)


@mutant("leaves out an incomplete step of K", family="basics", caught_by="accuracy", arithmetic="int32")
def tail_dropped(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    whole = a.shape[1] // STEP * STEP
    return ended(a[:, :whole].double() @ b[:whole].double(), scale_a, scale_b)
