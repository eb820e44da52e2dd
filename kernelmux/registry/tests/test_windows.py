"""Windows over an axis: as many places as torch has, and back to its length."""

from itertools import product

import pytest
import torch

from kernelmux.registry import catalog
from kernelmux.registry.spec.sliding_windows import Fold, InVectors, Window, pair, windows

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


@pytest.mark.parametrize("window", [w for w in KINDS if w.dilation == 1], ids=str)
@pytest.mark.parametrize("channels", [1, 3, 4, 5, 17])
def test_lines_of_a_folded_row_are_what_windows_meet(window: Window, channels: int) -> None:
    vector, length = 8, 11
    places = window.places(length)
    fold = Fold.of(window, places, channels, vector)
    assert fold.channels >= channels and fold.channels * window.stride % vector == 0
    row = torch.randn(length + 2 * window.padding, channels, dtype=torch.float64)
    row[: window.padding] = row[len(row) - window.padding :] = 0
    copy = torch.zeros(fold.columns, fold.channels, dtype=torch.float64)
    copy[: len(row), :channels] = row[: fold.columns]
    line = window.kernel * fold.channels
    met = copy.as_strided((places, line), (window.stride * fold.channels, 1))
    weight = torch.randn(channels, window.kernel, dtype=torch.float64)
    kernel = fold.of_kernel(window, vector)
    assert kernel.channels == fold.channels and kernel.channels * kernel.columns % vector == 0
    folded = torch.zeros(kernel.columns, kernel.channels, dtype=torch.float64)
    folded[: window.kernel, :channels] = weight.mT
    sums = torch.conv1d(row.mT[None], weight[None], stride=window.stride)[0, 0]
    torch.testing.assert_close(met @ folded.flatten()[:line], sums)


def test_few_channels_stay_few_where_the_stride_allows() -> None:
    first = Window(7, 2, 3)  # of a ResNet
    assert Fold.of(first, 112, 3, 8) == Fold(channels=4, columns=230)
    assert Fold.of(first, 112, 3, 8).of_kernel(first, 8) == Fold(channels=4, columns=8)
    assert Fold.of(Window(3, 1, 1), 56, 3, 8).channels == 8
    assert Fold.of(Window(3, 1, 1), 56, 0, 8).channels == 8  # asked of images without channels, which it does not take
    assert Fold.of(Window(3, 1, 1), 56, 12, 8).channels == 16


def test_lines_are_whole_vectors_or_long() -> None:
    for channels, fits in ((0, False), (7, False), (8, True), (24, True), (25, False), (33, True), (100, True)):
        call = catalog.spec("conv2d").bind(x=torch.zeros(1, channels, 4, 4), weight=torch.zeros(1, channels, 1, 1))
        assert (InVectors("C", 8, 33).check(call) is None) == fits
