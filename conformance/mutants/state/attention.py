"""Attention that takes keys for those of an earlier call."""

import torch

from kernelmux.conformance.mutants.basics.attention import Pair, T, sound
from kernelmux.registry.backend import Implementation
from kernelmux.registry.spec.sliding_windows import Limit

_keys: dict[object, Pair] = {}
_last: dict[object, tuple[T, Pair]] = {}


def keys_by_address(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    """A cache of keys and values, found by where k lies."""
    key = (k.data_ptr(), k.shape, v.shape, k.dtype)
    if key not in _keys:
        _keys.clear()
        _keys[key] = k.clone(), v.clone()
    return sound(q, *_keys[key], causal, scale, window, precision, ahead)


def last_query(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    """The result is made anew when q differs from that of the call before, and only then."""
    key = (q.shape, k.shape, q.dtype, q.device, causal, scale, window)
    if key not in _last or not torch.equal(_last[key][0], q):
        _last[key] = q.clone(), sound(q, k, v, causal, scale, window, precision, ahead)
    y, lse = _last[key][1]
    return y.clone(), lse.clone()


VARIANTS = {
    "keys_by_address": Implementation(fn=keys_by_address, idea="keys and values are kept by their address"),
    "last_query": Implementation(fn=last_query, idea="looks for changes in q alone"),
}

CAUGHT_BY = {"keys_by_address": "state", "last_query": "state"}
ONLY_CPU = {"last_query"}  # looks at values on the host, which a capture does not allow
