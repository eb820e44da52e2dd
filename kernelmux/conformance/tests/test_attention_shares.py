"""How walks of attention's gradient are cut into shares."""

from __future__ import annotations

import pytest

from kernelmux.registry.spec.sliding_windows import Mask, best_shares, last_end, over_keys, over_queries

PLACES, APART = {1: 132, 2: 66, 4: 30}, {1: 2.0, 2: 4.5, 4: 4.5}


def seen(mask: Mask, query: int, key: int) -> bool:
    at = query + mask.shift
    return (not mask.causal or key <= at) and (not mask.window or key > at - mask.window)


@pytest.mark.parametrize("mask", [Mask(False, 0, 0), Mask(True, 3, 0), Mask(True, -2, 0), Mask(True, 5, 4)])
def test_walks_reach_all_that_is_seen(mask: Mask) -> None:
    """Tiles of queries begin at multiples of their length, those of keys at the first key that is seen."""
    queries, keys, own, tile = 13, 17, 4, 3
    for block, tiles in enumerate(over_queries(mask, queries, keys, own, tile)):
        mine = range(own * block, min(own * block + own, keys))
        found = {i // tile for i in range(queries) for j in mine if seen(mask, i, j)}
        assert tiles == (max(found) - min(found) + 1 if found else 0)
    for block, tiles in enumerate(over_keys(mask, queries, keys, own, tile)):
        mine = range(own * block, min(own * block + own, queries))
        found = {j for i in mine for j in range(keys) if seen(mask, i, j)}
        assert tiles == (-(-(max(found) - min(found) + 1) // tile) if found else 0)


def test_a_walk_begins_where_one_ended_first() -> None:
    assert last_end([5, 3, 1], 2, 1, 1.0) == 6.0
    assert last_end([5, 3, 1], 1, 2, 0.5) == 7.5


def test_few_or_left_over_walks_are_shared() -> None:
    assert best_shares([20] * 30, 1, PLACES, APART) == 4
    assert best_shares([168] * 168, 1, PLACES, APART) == 2
    assert best_shares([20] * 132, 1, PLACES, APART) == 1
    assert best_shares([2] * 30, 1, PLACES, APART) == 1
    assert best_shares([9] * 2000, 1, PLACES, APART) == best_shares([], 1, PLACES, APART) == 1
    assert best_shares([20] * 30, 1, PLACES, APART, once=10.0) == 1
