"""Attention that refuses calls it has not declared to refuse."""

import torch

from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import OneOf
from kernelmux.registry.errors import UnsupportedError


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    result: torch.Tensor = sound("attention", q, k, v, causal, scale)
    return result


def refused_inside(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    if k.shape[2] % 8:
        raise UnsupportedError(f"attention: N = {k.shape[2]}, needs a multiple of 8")
    return attention(q, k, v, causal, scale)


VARIANTS = {
    "narrow": Implementation(
        fn=attention, idea="takes D = 64 alone and says so", requires=(OneOf("D", 64),), arithmetic="mma"
    ),
    "refused_inside": Implementation(
        fn=refused_inside, idea="refuses in the kernel what it declares to run", arithmetic="mma"
    ),
}

CAUGHT_BY = {"refused_inside": "accuracy"}
