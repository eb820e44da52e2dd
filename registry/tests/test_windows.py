"""Windows over an axis: as many places as torch has, and back to its length."""

from itertools import product

import pytest
import torch

from kernelmux.registry.windows import Window, pair, windows

KINDS = [Window(*kind) for kind in product((1, 2, 5), (1, 2, 3), (0, 1, 4), (1, 3))]


@pytest.mark.parametrize("window", KINDS, ids=str)
def test_a_window_has_the_places_that_torch_gives_it(window: Window) -> None:
    kernel, stride, padding, dilation = window
    for length in range(1, 20):
        places = window.places(length)
        assert (places >= 1) == (length + 2 * padding >= window.reach)
        if places >= 1:
            x, weight = torch.zeros(1, 1, length), torch.zeros(1, 1, kernel)
            assert places == torch.conv1d(x, weight, None, stride, padding, dilation).shape[-1]
            assert window.length(places, window.rest(length)) == length


def test_a_pair_is_a_number_for_both_axes_or_one_for_each() -> None:
    assert pair(2) == (2, 2) and pair([1, 3]) == pair((1, 3)) == (1, 3)
    assert windows((8, 4, 3, 5), 2, (0, 1), 1) == (Window(3, 2, 0, 1), Window(5, 2, 1, 1))
