"""Which keys a query of attention sees, as kernels mask them."""

from __future__ import annotations

from typing import NamedTuple

Limit = int | None  # a number of keys; None: no limit


class Mask(NamedTuple):
    """Query i stands at key i + shift: it sees no later one if causal, and of those up to there the last `window`.

    A window of 0 is none.
    """

    causal: bool
    shift: int
    window: int


def mask_of(queries: int, keys: int, causal: bool, window: Limit, ahead: Limit) -> Mask:
    """The mask of a call of attention, whose last query stands at the last key.

    Queries that see some keys ahead are causal queries so many places further on. A bound that hides no key is none.
    """
    further = ahead if ahead is not None and 0 < ahead < queries - 1 else 0
    length = 0 if window is None or window >= keys else window + further
    return Mask(causal or ahead == 0 or further > 0, keys - queries + further, length)
