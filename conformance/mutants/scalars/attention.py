"""Attention, broken for unusual scales."""

import math

import torch

from kernelmux.conformance.mutants.basics.attention import Pair, T, scores, weighed
from kernelmux.registry.backend import Implementation
from kernelmux.registry.spec.sliding_windows import Limit


def sound(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    """In float64 but for the exponential."""
    s = scores(q, k, causal, scale, window, ahead, k.shape[2] - q.shape[2])
    return weighed(s, v, q, lambda x: torch.exp(x.float()).double())


def zero_is_default(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    return sound(q, k, v, causal, scale or 1 / math.sqrt(q.shape[-1]), window, precision, ahead)


def scale_by_roots(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    """sqrt(|scale|) into q and k each, so that neither overflows: the sign is lost."""
    root = math.sqrt(abs(scale))
    y, lse = sound(q.double() * root, k.double() * root, v, causal, 1.0, window, precision, ahead)
    return y.to(q.dtype), lse


def masked_by_product(
    q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> Pair:
    """The mask is -inf before it is scaled; a guard against NaN then shows all keys where the scale is not positive."""
    return sound(q, k, v, causal and scale > 0, scale, window, precision, ahead)


VARIANTS = {
    "sound": Implementation(fn=sound, idea="nothing is wrong with it", arithmetic="mma"),
    "zero_is_default": Implementation(fn=zero_is_default, idea="a scale of 0 counts as none given", arithmetic="mma"),
    "scale_by_roots": Implementation(fn=scale_by_roots, idea="gives q and k a root of the scale", arithmetic="mma"),
    "masked_by_product": Implementation(fn=masked_by_product, idea="adds the mask before the scale", arithmetic="mma"),
}

CAUGHT_BY = {"zero_is_default": "scalars", "scale_by_roots": "scalars", "masked_by_product": "scalars"}
