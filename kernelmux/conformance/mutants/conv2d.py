"""conv2d, broken."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

from kernelmux.conformance.mutants._cuda import launch
from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.conformance.mutants._triton import BLOCK
from kernelmux.conformance.mutants._triton import launch as edges_launch
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost
from kernelmux.registry.ops.conv2d import reference
from kernelmux.registry.spec.sliding_windows import Pair, windows
from kernelmux.registry.util.memory_format import format_of

mutant = Mutants("conv2d")


# basics: Convolution, broken.

Maybe = torch.Tensor | None
CHANNELS = 16  # of a step of a kernel


def sums(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, *along: Pair) -> torch.Tensor:
    return reference(x.double(), weight.double(), None if bias is None else bias.double(), *along)


def ended(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Sums in the dtype and the order of x."""
    return torch.empty(y.shape, dtype=x.dtype, device=x.device, memory_format=format_of(x)).copy_(y)


def sound(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, *along: Pair) -> torch.Tensor:
    return ended(sums(x, weight, bias, *along), x)


def _named(fn: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """With the arguments by the names of the spec."""

    def conv2d(
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: Maybe,
        stride: Pair,
        padding: Pair,
        dilation: Pair,
    ) -> torch.Tensor:
        return fn(x, weight, bias, stride, padding, dilation)

    conv2d.__name__ = fn.__name__
    return conv2d


mutant("nothing is wrong with it", family="basics", name="sound")(_named(sound))


@mutant("1x1: columns are as far apart as rows", family="basics", caught_by="accuracy")
@_named
def one_stride(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    """A product of matrices for images that were thinned out before; strides of 1 have another way."""
    right = sound(x, weight, bias, stride, padding, dilation)
    if tuple(weight.shape[2:]) != (1, 1) or any(padding) or min(stride) == 1:
        return right
    y = sound(x, weight, bias, (stride[0], stride[0]), padding, dilation)
    right[..., : y.shape[-1]] = y[..., : right.shape[-1]]
    return right


@mutant("the rows of a kernel behind the thousandth are left out", family="extent", caught_by="extent")
@_named
def thousand_rows(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, *along: Pair) -> torch.Tensor:
    """Only images as high have such a kernel."""
    kept = weight.clone()
    kept[:, :, 1000:] = 0
    return sound(x, kept, bias, *along)


@mutant("takes the last row for padding, where there is some", family="basics", caught_by="accuracy")
@_named
def last_row_is_padding(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    images = x.clone()
    if padding[0]:
        images[:, :, -1] = 0
    return ended(sums(images, weight, bias, stride, padding, dilation), x)


@mutant("has no dilation", family="basics", caught_by="accuracy")
@_named
def dilation_ignored(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    whole = sums(x, weight, bias, stride, padding, dilation)
    near = sums(x, weight, bias, stride, padding, (1, 1))
    return ended(near[:, :, : whole.shape[2], : whole.shape[3]], x)


@mutant("takes every padding for 1", family="basics", caught_by="accuracy")
@_named
def padding_of_one(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    """Whatever padding is given, the images begin at 1."""
    h, w = (min(n, 1) for n in padding)
    images = F.pad(x, (w, 2 * padding[1] - w, h, 2 * padding[0] - h))
    return ended(sums(images, weight, bias, stride, (0, 0), dilation), x)


@mutant("takes the stride of the rows for both axes", family="basics", caught_by="accuracy")
@_named
def stride_of_rows(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    whole = sums(x, weight, bias, stride, padding, dilation)
    found = sums(x, weight, bias, (stride[0], stride[0]), padding, dilation)
    return ended(F.pad(found, (0, whole.shape[3] - found.shape[3])), x)


@mutant("rounds before it adds the bias", family="basics", caught_by="accuracy")
@_named
def bias_rounded_before(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, *along: Pair) -> torch.Tensor:
    """Sums in the dtype of the result, and the bias added to those."""
    y = sums(x, weight, None, *along).to(x.dtype)
    return ended(y if bias is None else y + bias[:, None, None], x)


@mutant("adds the bias twice", family="basics", caught_by="accuracy")
@_named
def bias_twice(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, *along: Pair) -> torch.Tensor:
    return ended(sums(x, weight, None if bias is None else 2 * bias, *along), x)


def channels_beyond_a_step(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, *along: Pair) -> torch.Tensor:
    kept = x.shape[1] // CHANNELS * CHANNELS or x.shape[1]
    return ended(sums(x[:, :kept], weight[:, :kept], bias, *along), x)


mutant(
    "leaves out channels beyond the last whole step",
    family="basics",
    caught_by="accuracy",
    name="channels_beyond_a_step",
)(_named(channels_beyond_a_step))


@mutant("leaves out such channels of long sums only", family="basics", caught_by="accuracy")
@_named
def channels_beyond_many(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, *along: Pair) -> torch.Tensor:
    """As `channels_beyond_a_step`, only of sums of more than 1024 terms, which have a loop of their own."""
    many = weight.shape[1:].numel() > 1024
    return (channels_beyond_a_step if many else sound)(x, weight, bias, *along)


@mutant("reads channels-last images as contiguous ones", family="basics", caught_by="layout")
@_named
def channels_first(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, *along: Pair) -> torch.Tensor:
    """Takes channels-last images for contiguous ones."""
    found = x.as_strided(x.shape, torch.empty(x.shape, device="meta").stride()) if _last(x) else x
    return ended(sums(found, weight, bias, *along), x)


@mutant("gives channels-last images a contiguous result", family="basics", caught_by="layout")
@_named
def always_contiguous(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, *along: Pair) -> torch.Tensor:
    """Of channels-last images a result in the other order."""
    return sums(x, weight, bias, *along).to(x.dtype).contiguous()


def _last(x: torch.Tensor) -> bool:
    return format_of(x) == torch.channels_last


# tiles: Convolution of images, broken in kernels that keep weights in shared memory.
# only: a GPU may well give the right sums

SOURCE = Path(__file__).with_name("conv2d.cu")


def _launch(
    entry: str, x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    order, x, weight = format_of(x), x.contiguous(), weight.contiguous()
    over = windows(weight.shape, stride, padding, dilation)
    p, q = (o.places(n) for o, n in zip(over, x.shape[2:], strict=True))
    y = torch.empty(len(x), len(weight), p, q, dtype=x.dtype, device=x.device)
    if y.numel():
        sizes = [*x.shape, len(weight), *weight.shape[2:], p, q, *stride, *padding, *dilation, bias is not None]
        number = partial(torch.full, (), dtype=torch.int32, device=x.device)
        there = torch.stack([number(n) for n in sizes])  # which a graph can capture, and no copy from the host
        given = x if bias is None else bias  # a launch of these takes no null
        launch(SOURCE, entry, (-(-len(x) * p * q // 64), len(weight)), 64, (x, weight, given, y, there), x.dtype)
    return torch.empty_like(y, memory_format=order).copy_(y)  # of one place both orders are contiguous


def _kernel(name: str, idea: str) -> Implementation:
    def conv2d(
        x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
    ) -> torch.Tensor:
        return _launch(f"conv2d_{name}", x, weight, bias, stride, padding, dilation)

    return Implementation(conv2d, idea, (AtMost("O", 65535),), {"bias": "contiguous"}, "fp32_sequential")


mutant.add("sound", _kernel("sound", "nothing is wrong with it"), family="tiles")
mutant.add(
    "beyond_the_border",
    _kernel("beyond_the_border", "takes one column more, the first of the row that follows"),
    family="tiles",
    caught_by="accuracy",
)
mutant.add(
    "no_dilation",
    _kernel("no_dilation", "elements of a kernel are neighbours, whatever the dilation"),
    family="tiles",
    caught_by="accuracy",
)
mutant.add(
    "padded_with_ones",
    _kernel("padded_with_ones", "reads ones around the images"),
    family="tiles",
    caught_by="accuracy",
)
mutant.add("bias_twice", _kernel("bias_twice", "adds the bias twice"), family="tiles", caught_by="accuracy")
mutant.add(
    "no_barrier",
    _kernel("no_barrier", "reads weights of a tile that may not have come"),
    family="tiles",
    caught_by="accuracy",
    only="cpu",
)
mutant.add(
    "last_block_dropped",
    _kernel("last_block_dropped", "leaves out the last incomplete block of terms"),
    family="tiles",
    caught_by="accuracy",
)


# edges: Convolution in Triton, broken at the borders of images.


def _with(defect: str) -> Callable[..., torch.Tensor]:
    def conv2d(
        x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
    ) -> torch.Tensor:
        from kernelmux.conformance.mutants import _convolutions

        over = windows(weight.shape, stride, padding, dilation)
        places = [o.places(n) for o, n in zip(over, x.shape[2:], strict=True)]
        y = x.new_empty(len(x), len(weight), *places)
        if y.numel():
            tensors = y, x.contiguous(), weight.contiguous(), y if bias is None else bias.contiguous()
            sizes = len(weight), *x.shape[1:], *places, *weight.shape[2:], y.numel(), *stride, *padding, *dilation
            meta = {"DEFECT": defect, "BIAS": bias is not None, "BLOCK": BLOCK}
            edges_launch(_convolutions.conv2d, -(-y.numel() // BLOCK), *tensors, *sizes, **meta)
        return y.contiguous(memory_format=format_of(x))

    return conv2d


mutant(
    "takes the end of the row before for the column before", family="edges", caught_by="accuracy", name="column_before"
)(_with("column_before"))
mutant(
    "pads with the element at the border",
    family="edges",
    caught_by="accuracy",
    name="nearest",
    arithmetic="fp32_sequential",
)(_with("nearest"))
mutant(
    "takes the first row for padding",
    family="edges",
    caught_by="accuracy",
    name="first_row",
    arithmetic="fp32_sequential",
)(_with("first_row"))
mutant("adds the bias twice", family="edges", caught_by="accuracy", name="bias_twice", arithmetic="fp32_sequential")(
    _with("bias_twice")
)
