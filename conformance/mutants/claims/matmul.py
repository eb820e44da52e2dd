"""Matrix product that promises other things than it does."""

import torch

from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost

TF32_BITS = 13  # mantissa bits of fp32 that tf32 does not keep


def sound(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return (a.double() @ b.double()).to(a.dtype)


def _tf32(x: torch.Tensor) -> torch.Tensor:
    if x.dtype != torch.float32:
        return x
    raw = x.contiguous().view(torch.int32)
    return ((raw + (1 << TF32_BITS - 1)) & ~((1 << TF32_BITS) - 1)).view(torch.float32)


def tf32_anyway(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """Declared for tensor cores, whose bound is loose in tf32: but this call asked for ieee."""
    return sound(_tf32(a.resolve_neg()), _tf32(b.resolve_neg()), precision)


def sums_in_storage(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """Declared for tensor cores, and the two halves of K are added in the storage dtype."""
    k = a.shape[-1] // 2
    return sound(a[..., :k], b[..., :k, :], precision) + sound(a[..., k:], b[..., k:, :], precision)


def tf32_if_aligned(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """The fastest path takes operands whose lengths it likes, and does not ask for the precision."""
    likes = not (a.shape[-2] % 16 or a.shape[-1] % 8 or b.shape[-1] % 16) and b.stride(-2) > b.shape[-1]
    return tf32_anyway(a, b, precision) if likes else sound(a, b, precision)


VARIANTS = {
    "sound": Implementation(fn=sound, idea="nothing is wrong with it, and it declares what it may", arithmetic="mma"),
    "empty_only": Implementation(
        fn=sound, idea="runs matrices without rows and nothing else", requires=(AtMost("M", 0),)
    ),
    "tf32_anyway": Implementation(fn=tf32_anyway, idea="hides tf32 behind a declaration of mma", arithmetic="mma"),
    "tf32_if_aligned": Implementation(
        fn=tf32_if_aligned, idea="tf32 for aligned matrices with gaps between rows", arithmetic="mma"
    ),
    "sums_in_storage": Implementation(
        fn=sums_in_storage, idea="adds two partial sums in the storage dtype", arithmetic="mma"
    ),
}

CAUGHT_BY = {
    "empty_only": "claims", "tf32_anyway": "accuracy", "tf32_if_aligned": "layout", "sums_in_storage": "accuracy",
}  # fmt: skip
