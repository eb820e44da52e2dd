"""max_pool2d, broken."""

from collections.abc import Callable

import torch

from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.registry import catalog
from kernelmux.registry.util.memory_format import format_of

mutant = Mutants("max_pool2d")


# basics: Largest elements of windows, broken at borders, where elements are equal, and in what is saved.

Pair = tuple[int, int]
Found = tuple[torch.Tensor, torch.Tensor]


def _sound(x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Found:
    y, index = catalog.spec("max_pool2d").reference(x.double(), kernel, stride, padding)
    return y.to(x.dtype), index


def _following(fn: Callable[..., Found]) -> Callable[..., Found]:
    """The results lie as the images do."""

    def called(x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Found:
        form, (y, index) = format_of(x), fn(x, kernel, stride, padding)
        return y.contiguous(memory_format=form), index.contiguous(memory_format=form)

    called.__name__ = fn.__name__
    return called


mutant("nothing is wrong with it", family="basics", name="sound")(_following(_sound))


@mutant("padding is 0 instead of -inf", family="basics", caught_by="accuracy")
@_following
def padded_with_zeros(x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Found:
    """What lies around the image is 0, as in a convolution."""
    index = _sound(x, kernel, stride, padding)[1]
    wide = torch.nn.functional.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    return _sound(wide, kernel, stride, (0, 0))[0], index


@mutant("a window of -inf at the border, two further each time, has the index 0", family="basics", caught_by="accuracy")
@_following
def lost_at_the_border(x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Found:
    """Of -inf alone nothing is larger than what a search begins with, if that is at the padding."""
    y, index = _sound(x, kernel, stride, padding)
    return y, index.masked_fill(y == -torch.inf, 0) if stride == (2, 2) and any(padding) else index


@mutant("the last of equals", family="basics", caught_by="accuracy")
@_following
def last_of_equals(x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Found:
    """Compares with >= instead of >."""
    (h, w), sizes = x.shape[-2:], zip(x.shape[-2:], kernel, stride, padding, strict=True)
    beyond = [(k - n - 2 * p) % s for n, k, s, p in sizes]  # rows and columns at the end that no window reaches
    turned = torch.nn.functional.pad(x, (0, -beyond[1], 0, -beyond[0])).flip(-1, -2)
    return _sound(x, kernel, stride, padding)[0], h * w - 1 - _sound(turned, kernel, stride, padding)[1].flip(-1, -2)


@mutant("the image is a column too narrow", family="basics", caught_by="accuracy")
@_following
def missing_border(x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Found:
    """The last column of the image is taken for padding."""
    return _sound(torch.cat([x[..., :-1], torch.full_like(x[..., -1:], -torch.inf)], -1), kernel, stride, padding)


@mutant("NaN loses against numbers", family="basics", caught_by="special_values")
@_following
def lost_nan(x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Found:
    """As fmaxf does, which knows no NaN beside a number."""
    return _sound(torch.where(x.isnan(), -torch.inf, x), kernel, stride, padding)


@mutant("saves the index of the first NaN", family="basics", caught_by="special_values")
@_following
def first_nan(x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Found:
    """Goes on only where a number is larger: of several NaN the first stays."""
    known = torch.where(x.isnan(), torch.inf, x.double())
    y, index = _sound(x, kernel, stride, padding)
    return y, torch.where(y.isnan(), _sound(known, kernel, stride, padding)[1], index)


@mutant("saves the index of another window", family="basics", caught_by="accuracy")
@_following
def neighbour(x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Found:
    """The index that is saved is that of the window before."""
    y, index = _sound(x, kernel, stride, padding)
    return y, index.roll(1, -1)


@mutant("one stride for both axes", family="basics", caught_by="accuracy")
@_following
def one_size(x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Found:
    """The columns step as the rows do."""
    y, index = _sound(x, kernel, (stride[0], stride[0]), padding)
    right = _sound(x, kernel, stride, padding)
    return (y, index) if y.shape == right[0].shape else (right[0].roll(1, -1), right[1])


@mutant("carries the index in fp32", family="basics", caught_by="accuracy", shown_by="x1x1x4099x4099-kernel2")
@_following
def index_in_fp32(x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Found:
    """The place is carried beside the number, as a float: beyond 2^24 those are even."""
    y, index = _sound(x, kernel, stride, padding)
    return y, index.float().int()


@mutant("channels-last for images with gaps", family="basics", caught_by="layout")
def last_for_gaps(x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Found:
    """Results lie as torch has them: channels-last for images with gaps between their channels too."""
    last = x.dim() == 4 and x.stride(1) == 1 and x.shape[1] > 1
    form = torch.channels_last if last else torch.contiguous_format
    y, index = _sound(x, kernel, stride, padding)
    return y.contiguous(memory_format=form), index.contiguous(memory_format=form)


@mutant("channels-last images give contiguous results", family="basics", caught_by="layout")
def contiguous(x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Found:
    """Right numbers, but channels-last images give contiguous results."""
    return _sound(x, kernel, stride, padding)
