"""Convolution of images [N, C, H, W] with kernels [O, C, R, S], in one group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import torch

from kernelmux.registry.cases import Case, exact_range, integers
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import Call, Composed, Constraint, OpSpec, Output, Scalar, SpecialValues, Tensor
from kernelmux.registry.spec.gradient import Deferred
from kernelmux.registry.spec.sliding_windows import Pair, windows

Maybe = torch.Tensor | None
Tap = tuple[int, int, tuple[slice, ...]]
LARGEST = 2**28  # of stride, padding and dilation: kernels count rows and columns in 32 bits


def taps(kernel: Sequence[int], places: Pair, stride: Pair, dilation: Pair) -> Iterator[Tap]:
    """Row and column of each element of a kernel, and which elements of padded images it meets, one for each place."""
    for r, s in product(range(kernel[0]), range(kernel[1])):
        begins = (r * dilation[0], s * dilation[1])
        met = (slice(b, b + (n - 1) * step + 1, step) for b, n, step in zip(begins, places, stride, strict=True))
        yield r, s, (slice(None), slice(None), *met)


def padded(x: torch.Tensor, padding: Pair) -> torch.Tensor:
    """Images with zeros around them."""
    return torch.nn.functional.pad(x, (padding[1], padding[1], padding[0], padding[0]))


def reference(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    """One product of matrices for each element of a kernel."""
    over = windows(weight.shape, stride, padding, dilation)
    places = over[0].places(x.shape[2]), over[1].places(x.shape[3])
    images = padded(x, padding)
    y = x.new_zeros(len(x), len(weight), *places)
    for r, s, met in taps(weight.shape[2:], places, stride, dilation):
        y = y + torch.einsum("ncpq,oc->nopq", images[met], weight[:, :, r, s])
    return y if bias is None else y + bias[:, None, None]


def magnitude(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    return reference(x.abs(), weight.abs(), None if bias is None else bias.abs(), stride, padding, dilation)


def places(values: Mapping[str, Any], axes: Mapping[str, Any]) -> dict[str, int]:
    """P, Q: rows and columns of the output. K: terms of each sum. rows: sums for each kernel."""
    over = windows(values["weight"].shape, values["stride"], values["padding"], values["dilation"])
    p, q = over[0].places(axes["H"]), over[1].places(axes["W"])
    return {"P": p, "Q": q, "K": axes["C"] * axes["R"] * axes["S"], "rows": axes["N"] * p * q}


def exact(case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, torch.Tensor] | None:
    """Integers whose products sum exactly in fp32, to numbers of the dtype."""
    terms = torch.Size(case.shapes["weight"][1:]).numel() + 1
    largest = min(exact_range(terms, dtype, products=True), 512)
    return {name: integers(shape, dtype, rng, largest) for name, shape in case.shapes.items()} if largest else None


def gradients(kx: Any, values: Mapping[str, Any], grads: Mapping[str, torch.Tensor]) -> dict[str, Deferred]:
    """An operator for each factor, and for the bias the sum over all images and places."""
    g, x, weight = grads["y"], values["x"], values["weight"]
    along = values["stride"], values["padding"], values["dilation"]
    over = windows(weight.shape, *along)
    rest = over[0].rest(x.shape[2]), over[1].rest(x.shape[3])
    found: dict[str, Deferred] = {
        "x": lambda: kx.conv2d_backward_input(g, weight, *along, rest),
        "weight": lambda: kx.conv2d_backward_weight(g, x, tuple(weight.shape[2:]), *along),
    }
    if values["bias"] is None:
        return found
    # A copy, unless g is channels-last.
    return {**found, "bias": lambda: kx.reduce_sum(g.transpose(0, 1).flatten(1), 1)}


def work(call: Call, *tensors: tuple[int, ...]) -> Cost:
    """Every tensor once, and a product for each element of a kernel, place, and pair of channels."""
    n, c, o, r, s, p, q = (call.axes[axis] for axis in "NCORSPQ")
    elements = sum(torch.Size(shape).numel() for shape in tensors)
    unit = "fma" if call.dtype == torch.float32 else "tensor"
    return Cost(bytes=elements * call.dtype.itemsize, flops=2 * n * o * p * q * c * r * s, unit=unit)


def cost(call: Call) -> Cost:
    n, o, p, q = (call.axes[axis] for axis in "NOPQ")
    return work(call, (n, o, p, q), *(tuple(t.shape) for t in call.tensors.values()))


HALVES = (torch.float16, torch.bfloat16)
SINGLE = (torch.float32,)
STRIDE = Scalar(
    "stride", int, 1, range=(1, LARGEST), trials=(2, (1, 3)), length=2, doc="rows and columns from place to place"
)
PADDING = Scalar(
    "padding", int, 0, range=(0, LARGEST), trials=(1, (2, 0)), length=2, doc="rows and columns of zeros at each side"
)
DILATION = Scalar(
    "dilation", int, 1, range=(1, LARGEST), trials=(2, (3, 1)), length=2, doc="from one element of a kernel to the next"
)
OVERFLOW = "sums in fp32 overflow on the way, to either infinity"
SPECIAL = SpecialValues(
    undefined={"largest fp32": OVERFLOW, "largest bf16": OVERFLOW},
    # The product of an infinity and a zero of the padding is NaN; a kernel may leave it out.
    on=lambda values: not any(values["padding"]),
)


def _case(x: str, weight: str, more: str = "", bias: bool = False, **options: Any) -> Case:
    given = f" bias={weight.split('x')[0]}" if bias else ""
    return Case(f"x={x} weight={weight}{given} {more}".strip(), **options)


SPEC = OpSpec(
    name="conv2d",
    version=1,
    family="Images",
    summary="Convolution of images with kernels; NCHW and channels-last tensors are read in place.",
    math="y[n, o, p, q] = bias[o] + sum over c, r, s of weight[o, c, r, s] * x[n, c, p * stride - padding + r * dilation,"
    " q * stride - padding + s * dilation], zeros outside of x; accumulated in fp32, rounded once",
    inputs=(
        Tensor("x", "N C H W", doc="images, of any strides"),
        Tensor("weight", "O C R S", like="x", doc="a kernel for each channel of the output"),
        Tensor("bias", "O", like="x", optional=True),
        STRIDE,
        PADDING,
        DILATION,
    ),
    outputs=(Output("y", like="x", dims="N O P Q", order="x"),),
    derive=places,
    constraints=(
        Constraint("R >= 1 and S >= 1", lambda v: v["R"] >= 1 and v["S"] >= 1),
        Constraint(
            "a kernel that fits into the padded images: (R - 1) * dilation < H + 2 * padding, the same for S and W",
            lambda v: v["P"] >= 1 and v["Q"] >= 1,
        ),
    ),
    reference=reference,
    arithmetics=("fp32", "fp32_sequential", "mma"),
    error=ErrorModel(magnitude=magnitude, terms=lambda axes: axes["K"] + 1),
    exact=exact,
    special=SPECIAL,
    cases=(
        _case("1x8x7x7", "16x8x3x3", "padding=1", bias=True, tier="smoke"),
        _case("2x24x5x6", "40x24x1x1"),  # a plain product
        _case("2x16x9x8", "24x16x3x3", "stride=2 padding=1", bias=True),
        _case("1x5x9x9", "7x5x3x3", "padding=2 dilation=2"),  # no row of anything is aligned
        _case("1x4x6x11", "6x4x2x5", "stride=1x3 padding=0x2 dilation=2x1"),
        _case("1x3x17x15", "8x3x7x7", "stride=2 padding=3", bias=True),  # the first layer of a ResNet
        _case("2x33x9x8", "65x33x3x3", "padding=1", dtypes=HALVES),  # beyond a tile along every axis
        _case("2x17x6x6", "33x17x2x2", bias=True),
        _case("1x3x3x2", "4x3x5x4", "padding=1"),  # as large as the padded image: one place
        _case("2x2x2x2", "3x2x1x1", "padding=2", bias=True),  # places that see nothing but padding
        _case("1x72x4x4", "8x72x3x3", inputs="positive"),
        _case("1x115x4x4", "8x115x3x3", inputs="positive"),  # an incomplete step beyond 1024 terms
        _case("1x16x6x5", "8x16x3x3", inputs="cancel"),
        _case("1x3x5x5", "4x3x2x2", inputs="faint", dtypes=SINGLE),
        _case("0x4x5x5", "8x4x3x3", bias=True),
        _case("1x0x4x4", "3x0x2x2", bias=True),  # sums without terms
        _case("1x4x4x4", "0x4x1x1"),
        _case("2x24x5x6", "40x24x1x1", "stride=1x2"),
        _case("2x24x5x6", "17x24x3x3", "channels-last", bias=True),
        _case("1x16x9x7", "8x16x1x1", "stride=3x2", bias=True),
        _case("1x16x24x5", "8x16x3x3", dtypes=HALVES[:1]),  # rows in several bands
        _case("1x16x4x4", "179x16x2x2", "channels-last", dtypes=HALVES[:1]),
        _case("1x32x5x6", "24x32x2x2", "channels-last padding=1", dtypes=SINGLE),
        _case(
            "1x3x19x22", "65x3x5x4", "padding=1", bias=True, dtypes=SINGLE
        ),  # in the largest tile of one multiprocessor
        _case("3x8x8x1", "22x8x2x2", "channels-last padding=2", dtypes=(torch.bfloat16,)),
        _case("2x72x8x8", "5x72x1x1", bias=True),  # rows of pixels that the copy engine can read
        _case("1x5x8x8", "3x5x1x1", bias=True),
        _case("1x3x12x12", "4x3x3x3", "channels-last stride=9 padding=1"),
        _case("1x8x3x3", "8x8x3x3", "stride=8x1 padding=130x0"),  # windows that begin far outside
        _case("4x64x28x30", "96x64x3x3", "padding=1", bias=True, tier="full"),
        _case("2x3x224x224", "64x3x7x7", "stride=2 padding=3", tier="full"),
        _case("1x513x14x14", "129x513x3x3", "padding=2 dilation=2", inputs="positive", tier="full"),
        _case("3x256x20x20", "1024x256x1x1", "stride=2", bias=True, tier="full"),
        _case("48x72x56x16", "24x72x3x3", "channels-last", bias=True, dtypes=HALVES, tier="full"),  # rounds and a rest
        # channels-last images of no whole number of strides: both ways, rows alone, columns alone
        _case("2x16x9x11", "24x16x3x3", "channels-last stride=2 padding=1", bias=True, dtypes=HALVES),
        _case("1x32x10x12", "37x32x3x2", "channels-last stride=3x2 padding=2x1 dilation=2x1", dtypes=HALVES),
        _case("3x48x8x7", "8x48x1x3", "channels-last stride=2x4", bias=True, dtypes=HALVES[:1]),
    ),
    workloads=(
        _case("32x256x56x56", "256x256x3x3", "padding=1", dtypes=HALVES),
        _case("32x3x224x224", "64x3x7x7", "stride=2 padding=3", dtypes=HALVES),
        _case("32x256x56x56", "64x256x1x1", dtypes=HALVES),
        _case("32x64x56x56", "256x64x1x1", bias=True, dtypes=HALVES),
        _case("32x128x56x56", "128x128x3x3", "stride=2 padding=1", dtypes=HALVES),
        _case("8x512x28x28", "512x512x3x3", "padding=2 dilation=2", dtypes=HALVES),
        _case("8x64x56x56", "64x64x3x3", "padding=1", dtypes=SINGLE),
    ),
    cost=cost,
    gradient=Composed(("x", "weight", "bias"), gradients),
)
