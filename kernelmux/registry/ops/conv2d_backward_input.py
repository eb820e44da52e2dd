"""Gradient of conv2d with respect to its images: a convolution that is transposed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from kernelmux.registry.cases import Case, exact_range, integers
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.ops import conv2d
from kernelmux.registry.spec import Call, Composed, Constraint, OpSpec, Output, Scalar, SpecialValues, Tensor
from kernelmux.registry.spec.gradient import Deferred
from kernelmux.registry.spec.sliding_windows import Pair, windows


def reference(
    grad_out: torch.Tensor, weight: torch.Tensor, stride: Pair, padding: Pair, dilation: Pair, output_padding: Pair
) -> torch.Tensor:
    """The products of an element of a kernel with all places, or of a place with a whole kernel, added where they meet."""
    over = windows(weight.shape, stride, padding, dilation)
    places = (grad_out.shape[2], grad_out.shape[3])
    h, w = (o.length(n, rest) for o, n, rest in zip(over, places, output_padding, strict=True))
    images = grad_out.new_zeros(len(grad_out), weight.shape[1], h + 2 * padding[0], w + 2 * padding[1])
    kernel = (weight.shape[2], weight.shape[3])
    if math.prod(kernel) <= math.prod(places):
        for r, s, met in conv2d.taps(kernel, places, stride, dilation):
            images[met] += torch.einsum("nopq,oc->ncpq", grad_out, weight[:, :, r, s])
    else:
        for p, q, met in conv2d.taps(places, kernel, dilation, stride):
            images[met] += torch.einsum("no,ocrs->ncrs", grad_out[:, :, p, q], weight)
    return images[:, :, padding[0] : padding[0] + h, padding[1] : padding[1] + w]


def magnitude(grad_out: torch.Tensor, weight: torch.Tensor, *along: Pair) -> torch.Tensor:
    return reference(grad_out.abs(), weight.abs(), *along)


def lengths(values: Mapping[str, Any], axes: Mapping[str, Any]) -> dict[str, int]:
    """H, W: rows and columns of the images. K: terms of each sum, at most. rows: sums for each channel."""
    over = windows(values["weight"].shape, values["stride"], values["padding"], values["dilation"])
    places, rests = (axes["P"], axes["Q"]), values["output_padding"]
    h, w = (o.length(n, rest) for o, n, rest in zip(over, places, rests, strict=True))
    return {"H": h, "W": w, "K": axes["O"] * axes["R"] * axes["S"], "rows": axes["N"] * h * w}


def exact(case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, torch.Tensor] | None:
    """Integers whose products sum exactly in fp32, to numbers of the dtype."""
    o, _, r, s = case.shapes["weight"]
    largest = min(exact_range(o * r * s, dtype, products=True), 512)
    return {name: integers(shape, dtype, rng, largest) for name, shape in case.shapes.items()} if largest else None


def gradients(kx: Any, values: Mapping[str, Any], grads: Mapping[str, torch.Tensor]) -> dict[str, Deferred]:
    """It is linear in both: the convolution itself, and the gradient of its kernels."""
    g, along = grads["grad_x"], (values["stride"], values["padding"], values["dilation"])
    grad_out, weight = values["grad_out"], values["weight"]
    return {
        "grad_out": lambda: kx.conv2d(g, weight, None, *along),
        "weight": lambda: kx.conv2d_backward_weight(grad_out, g, tuple(weight.shape[2:]), *along),
    }


def cost(call: Call) -> Cost:
    n, c, h, w = (call.axes[axis] for axis in "NCHW")
    return conv2d.work(call, (n, c, h, w), *(tuple(t.shape) for t in call.tensors.values()))


def plain(values: Mapping[str, Any]) -> bool:
    """Whether each place is an element of an image, so that nothing is multiplied by zeros."""
    return windows(values["weight"].shape, values["stride"], values["padding"], 1) == windows((1, 1), 1, 0, 1)


def _case(grad_out: str, weight: str, more: str = "", **options: Any) -> Case:
    return Case(f"grad_out={grad_out} weight={weight} {more}".strip(), **options)


SPEC = OpSpec(
    name="conv2d_backward_input",
    version=1,
    family="Images",
    summary="Gradient of conv2d with respect to x, which is a transposed convolution.",
    math="grad_x[n, c, h, w] = sum over o, r, s, and the places p, q whose element r, s lies at h, w, of"
    " grad_out[n, o, p, q] * weight[o, c, r, s]; accumulated in fp32, rounded once",
    inputs=(
        Tensor("grad_out", "N O P Q", doc="gradient of the output of conv2d, of any strides"),
        Tensor("weight", "O C R S", like="grad_out", doc="as in the forward call"),
        conv2d.STRIDE,
        conv2d.PADDING,
        conv2d.DILATION,
        Scalar(
            "output_padding",
            int,
            0,
            range=(0, conv2d.LARGEST),
            trials=(1, (0, 1)),
            length=2,
            extent=True,
            doc="rows and columns at the end of padded images that are too few for a further place",
        ),
    ),
    outputs=(Output("grad_x", like="grad_out", dims="N C H W", order="grad_out"),),
    derive=lengths,
    constraints=(
        Constraint("R >= 1 and S >= 1", lambda v: v["R"] >= 1 and v["S"] >= 1),
        Constraint("P >= 1 and Q >= 1", lambda v: v["P"] >= 1 and v["Q"] >= 1),
        Constraint(
            "output_padding < stride",
            lambda v: all(rest < step for rest, step in zip(v["output_padding"], v["stride"], strict=True)),
        ),
        Constraint("images of a row and a column or more: H >= 1 and W >= 1", lambda v: v["H"] >= 1 and v["W"] >= 1),
    ),
    reference=reference,
    arithmetics=conv2d.SPEC.arithmetics,
    error=ErrorModel(magnitude=magnitude, terms=lambda axes: axes["K"]),
    exact=exact,
    special=SpecialValues(undefined=conv2d.SPECIAL.undefined, on=plain),
    cases=(
        _case("1x16x7x7", "16x8x3x3", "padding=1", tier="smoke"),
        _case("2x40x5x6", "40x24x1x1"),  # a plain product
        _case("2x24x5x4", "24x16x3x3", "stride=2 padding=1 output_padding=0x1"),  # a last column that none meets
        _case("1x6x4x3", "6x4x1x2", "stride=3"),  # rows between those that are met are zero
        _case("1x7x9x9", "7x5x3x3", "padding=2 dilation=2"),  # no row of anything is aligned
        _case("1x6x4x4", "6x4x2x5", "stride=1x3 padding=0x2 dilation=2x1 output_padding=0x1"),
        _case("1x8x9x8", "8x3x7x7", "stride=2 padding=3"),
        _case("2x65x9x8", "65x33x3x3", "padding=1", dtypes=conv2d.HALVES),  # beyond a tile along every axis
        _case("1x4x1x1", "4x3x5x4", "padding=1"),
        _case("2x3x6x6", "3x2x1x1", "padding=2"),  # places that see nothing but padding
        _case("1x72x4x4", "72x8x3x3", inputs="positive"),
        _case("1x16x6x5", "16x8x3x3", inputs="cancel"),
        _case("1x8x1x1", "8x2x1x1", "stride=65x64"),  # most pixels are zero
        _case("1x72x3x3", "72x8x2x2", "stride=2"),  # windows side by side, more terms than a step has
        _case("2x8x2x5", "8x64x3x3", "channels-last padding=1"),
        _case("1x16x3x4", "16x5x2x2", "channels-last stride=3"),
        _case("1x8x2x2", "8x4x2x2", "channels-last stride=2 dilation=3"),
        _case("1x52x8x1", "52x8x1x1"),
        _case("0x8x3x3", "8x4x3x3"),
        _case("0x8x3x3", "8x4x3x3", "stride=2 dilation=3"),
        _case("1x0x4x4", "0x3x2x2"),  # sums without terms
        _case("1x4x4x4", "4x0x1x1"),
        _case("4x96x28x30", "96x64x3x3", "padding=1", tier="full"),
        _case("2x64x112x112", "64x3x7x7", "stride=2 padding=3 output_padding=1", tier="full"),
        _case("1x513x14x14", "513x129x3x3", "padding=2 dilation=2", inputs="positive", tier="full"),
        _case("3x256x10x10", "256x1024x1x1", "stride=2 output_padding=1", tier="full"),
    ),
    workloads=(
        _case("32x256x56x56", "256x256x3x3", "padding=1", dtypes=conv2d.HALVES),
        _case("32x64x56x56", "64x256x1x1", dtypes=conv2d.HALVES),
        _case("32x128x28x28", "128x128x3x3", "stride=2 padding=1 output_padding=1", dtypes=conv2d.HALVES),
        _case("8x512x28x28", "512x512x3x3", "padding=2 dilation=2", dtypes=conv2d.HALVES),
    ),
    cost=cost,
    gradient=Composed(("grad_out", "weight"), gradients),
)
