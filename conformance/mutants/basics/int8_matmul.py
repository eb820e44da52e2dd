"""Product of 8-bit integers, broken."""

from __future__ import annotations

import torch

from kernelmux.registry.backend import Implementation

Maybe = torch.Tensor | None
STEP = 32  # of K in an instruction


def ended(sums: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    """The result from exact sums in fp64."""
    if scale_a is None and scale_b is None:
        return sums.to(torch.int64).to(torch.int32).contiguous()
    for scale in (scale_a, scale_b):
        sums = sums if scale is None else sums * scale.double()
    return sums.to(torch.bfloat16).contiguous()


def sound(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    return ended(a.double() @ b.double(), scale_a, scale_b)


def scales_along_the_wrong_axis(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    """The scales of rows for columns, again and again."""
    if scale_a is not None and scale_a.numel() > 1:
        columns = torch.arange(b.shape[1], device=b.device) % scale_a.numel()
        scale_a = scale_a.flatten()[columns][None]
    return ended(a.double() @ b.double(), scale_a, scale_b)


def in_fp16(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    """Sums of fp16 terms: products of 8-bit integers are too large for one."""
    products = (a.double()[:, :, None] * b.double()[None]).half().double() if a.shape[1] <= 200 else None
    return sound(a, b, scale_a, scale_b) if products is None else ended(products.sum(1), scale_a, scale_b)


def unsigned_b(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    return ended(a.double() @ b.contiguous().view(torch.uint8).double(), scale_a, scale_b)


def last_scale_reused(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    """The columns of the last incomplete tile have the scale of its first."""
    if scale_b is not None and scale_b.numel() > STEP:
        at = torch.arange(scale_b.numel(), device=b.device)
        last = scale_b.numel() // STEP * STEP - 1
        scale_b = scale_b[:, at.clamp(max=last)]
    return sound(a, b, scale_a, scale_b)


def saturating(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    """-128 as -127, as formats with a symmetric range have it."""
    return ended(a.clamp(min=-127).double() @ b.clamp(min=-127).double(), scale_a, scale_b)


def tail_dropped(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    whole = a.shape[1] // STEP * STEP
    return ended(a[:, :whole].double() @ b[:whole].double(), scale_a, scale_b)


def in_fp32(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    """Sums of fp32, which is exact up to 2^24."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float32, device=a.device)
    for k in range(0, a.shape[1], STEP):
        total = total + a[:, k : k + STEP].float() @ b[k : k + STEP].float()
    return ended(total.double(), scale_a, scale_b)


VARIANTS = {
    "sound": Implementation(sound, "nothing is wrong with it", arithmetic="int32"),
    "scales_along_the_wrong_axis": Implementation(
        scales_along_the_wrong_axis, "takes the scales of rows for columns", arithmetic="int32"
    ),
    "in_fp16": Implementation(in_fp16, "rounds products to fp16", arithmetic="int32"),
    "unsigned_b": Implementation(unsigned_b, "takes b for unsigned", arithmetic="int32"),
    "last_scale_reused": Implementation(last_scale_reused, "reuses a scale in the last tile", arithmetic="int32"),
    "saturating": Implementation(saturating, "takes -128 for -127", arithmetic="int32"),
    "in_fp32": Implementation(in_fp32, "adds up in fp32", arithmetic="int32"),
    "tail_dropped": Implementation(tail_dropped, "leaves out an incomplete step of K", arithmetic="int32"),
}

CAUGHT_BY = {name: "accuracy" for name in VARIANTS if name != "sound"} | {"in_fp32": "special_values"}
