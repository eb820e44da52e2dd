"""Attention that takes keys for those of an earlier call."""

import torch

from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.backend import Implementation

_keys: dict[object, tuple[torch.Tensor, torch.Tensor]] = {}
_last: dict[object, tuple[torch.Tensor, torch.Tensor]] = {}


def keys_by_address(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None
) -> torch.Tensor:
    """A cache of keys and values, found by where k lies."""
    key = (k.data_ptr(), k.shape, v.shape, k.dtype)
    if key not in _keys:
        _keys.clear()
        _keys[key] = k.clone(), v.clone()
    result: torch.Tensor = sound("attention", q, *_keys[key], causal, scale)
    return result


def last_query(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None) -> torch.Tensor:
    """The result is made anew when q differs from that of the call before, and only then."""
    key = (q.shape, k.shape, q.dtype, q.device, causal, scale)
    if key not in _last or not torch.equal(_last[key][0], q):
        _last[key] = q.clone(), sound("attention", q, k, v, causal, scale)
    return _last[key][1].clone()


VARIANTS = {
    "keys_by_address": Implementation(fn=keys_by_address, idea="keys and values are kept by their address"),
    "last_query": Implementation(fn=last_query, idea="looks for changes in q alone"),
}

CAUGHT_BY = {"keys_by_address": "state", "last_query": "state"}
ONLY_CPU = {"last_query"}  # looks at values on the host, which a capture does not allow
