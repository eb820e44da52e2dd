"""Product of a weight with few vectors, broken."""

from __future__ import annotations

import torch

from kernelmux.registry.backend import Implementation

Maybe = torch.Tensor | None
HELD = 16  # bytes of an access
WARPS = 8  # that share a row


def product(weight: torch.Tensor, x: torch.Tensor, scale: Maybe) -> torch.Tensor:
    sums = x.double() @ weight.double().mT
    return (sums if scale is None else sums * scale.double()).to(x.dtype).contiguous()


def scale_of_the_first_row(weight: torch.Tensor, x: torch.Tensor, scale: Maybe) -> torch.Tensor:
    return product(weight, x, scale if scale is None else scale[:1].expand(len(scale)))


def scaled_vectors(weight: torch.Tensor, x: torch.Tensor, scale: Maybe) -> torch.Tensor:
    """The scales along the vectors instead of the rows."""
    if scale is None or not len(scale):
        return product(weight, x, scale)
    along = scale.double()[torch.arange(len(x), device=x.device) % len(scale)]
    return (x.double() @ weight.double().mT * along[:, None]).to(x.dtype).contiguous()


def unsigned(weight: torch.Tensor, x: torch.Tensor, scale: Maybe) -> torch.Tensor:
    """Bytes without their sign."""
    return product(weight.view(torch.uint8) if weight.dtype == torch.int8 else weight, x, scale)


def tail_dropped(weight: torch.Tensor, x: torch.Tensor, scale: Maybe) -> torch.Tensor:
    """Columns beyond the last whole access."""
    whole = weight.shape[1] // HELD * HELD
    return product(weight[:, :whole], x[:, :whole], scale)


def eight(weight: torch.Tensor, x: torch.Tensor, scale: Maybe) -> torch.Tensor:
    """The ninth vector and those after it are the first ones again."""
    return product(weight, x[torch.arange(len(x), device=x.device) % 8], scale)


def in_16_bits(weight: torch.Tensor, x: torch.Tensor, scale: Maybe) -> torch.Tensor:
    """Sums of the warps that share a row are added in the dtype of the result."""
    low = torch.bfloat16 if x.dtype == torch.float32 else x.dtype
    parts = zip(weight.double().chunk(WARPS, 1), x.double().chunk(WARPS, 1), strict=True)
    total = torch.zeros(len(x), len(weight), dtype=low, device=x.device)
    for w, v in parts:
        total = total + (v @ w.mT).to(low)
    return (total.double() if scale is None else total.double() * scale.double()).to(x.dtype).contiguous()


VARIANTS = {
    "sound": Implementation(product, "nothing is wrong with it"),
    "scale_of_the_first_row": Implementation(scale_of_the_first_row, "takes the first scale for all rows"),
    "scaled_vectors": Implementation(scaled_vectors, "applies the scales along the wrong axis"),
    "unsigned": Implementation(unsigned, "takes int8 for unsigned"),
    "tail_dropped": Implementation(tail_dropped, "leaves out the columns of an incomplete access"),
    "eight": Implementation(eight, "knows eight vectors"),
    "in_16_bits": Implementation(in_16_bits, "adds the sums of warps in 16 bits"),
}

CAUGHT_BY = {name: "accuracy" for name in VARIANTS if name != "sound"}
