"""Attention that refuses calls it has not declared to refuse."""

from kernelmux.conformance.mutants.basics.attention import Pair, T, sound
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import OneOf
from kernelmux.registry.errors import UnsupportedError
from kernelmux.registry.spec.sliding_windows import Limit


def attention(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    return sound(q, k, v, causal, scale, window, precision, ahead)


def refused_inside(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    if k.shape[2] % 8:
        raise UnsupportedError(f"attention: N = {k.shape[2]}, needs a multiple of 8")
    return attention(q, k, v, causal, scale, window, precision, ahead)


VARIANTS = {
    "narrow": Implementation(
        fn=attention, idea="takes D = 64 alone and says so", requires=(OneOf("D", 64),), arithmetic="mma"
    ),
    "refused_inside": Implementation(
        fn=refused_inside, idea="refuses in the kernel what it declares to run", arithmetic="mma"
    ),
}

CAUGHT_BY = {"refused_inside": "accuracy"}
