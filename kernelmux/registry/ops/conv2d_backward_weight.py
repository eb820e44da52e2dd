"""Gradient of conv2d with respect to its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kernelmux.registry.cases import Case, exact_range, integers
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.ops import conv2d
from kernelmux.registry.spec import Call, Composed, Constraint, OpSpec, Output, Scalar, Tensor
from kernelmux.registry.spec.gradient import Deferred
from kernelmux.registry.spec.sliding_windows import Pair, pair, windows


def reference(
    grad_out: torch.Tensor, x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    """For each element of a kernel the products of all places with the elements of images that it meets there."""
    images, places = conv2d.padded(x, padding), (grad_out.shape[2], grad_out.shape[3])
    met = (images[where] for _, _, where in conv2d.taps(kernel, places, stride, dilation))
    found = [torch.einsum("nopq,ncpq->oc", grad_out, part) for part in met]
    sums = torch.stack(found, -1) + 0.0  # a sum begins with 0: that of -0 alone is 0
    return sums.view(*sums.shape[:2], *kernel)


def magnitude(grad_out: torch.Tensor, x: torch.Tensor, *along: Pair) -> torch.Tensor:
    return reference(grad_out.abs(), x.abs(), *along)


def lengths(values: Mapping[str, Any], axes: Mapping[str, Any]) -> dict[str, int]:
    """R, S: rows and columns of a kernel. K: terms of each sum."""
    r, s = values["kernel"]
    return {"R": r, "S": s, "K": axes["N"] * axes["P"] * axes["Q"]}


def fitting(values: Mapping[str, Any]) -> bool:
    """Whether the kernel has P x Q places on the images."""
    over = windows(values["kernel"], values["stride"], values["padding"], values["dilation"])
    return (over[0].places(values["H"]), over[1].places(values["W"])) == (values["P"], values["Q"])


def fit(shapes: Mapping[str, tuple[int, ...]], scalars: Mapping[str, Any]) -> Pair:
    """R and S of the largest kernel with P x Q places, where there is one."""
    along = (pair(scalars.get(item.name) or item.default) for item in (conv2d.STRIDE, conv2d.PADDING, conv2d.DILATION))
    sides = zip(shapes["grad_out"][2:], shapes["x"][2:], *along, strict=True)
    r, s = (
        (n + 2 * padding - (places - 1) * stride - 1) // dilation + 1 for places, n, stride, padding, dilation in sides
    )
    return r, s


def exact(case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, torch.Tensor] | None:
    """Integers whose products sum exactly in fp32, to numbers of the dtype."""
    n, _, p, q = case.shapes["grad_out"]
    largest = min(exact_range(n * p * q, dtype, products=True), 512)
    return {name: integers(shape, dtype, rng, largest) for name, shape in case.shapes.items()} if largest else None


def gradients(kx: Any, values: Mapping[str, Any], grads: Mapping[str, torch.Tensor]) -> dict[str, Deferred]:
    """It is linear in both: the convolution itself, and the gradient of its images."""
    g, along = grads["grad_weight"], (values["stride"], values["padding"], values["dilation"])
    grad_out, x, over = values["grad_out"], values["x"], windows(g.shape, *along)
    rest = over[0].rest(x.shape[2]), over[1].rest(x.shape[3])
    return {
        "grad_out": lambda: kx.conv2d(x, g, None, *along),
        "x": lambda: kx.conv2d_backward_input(grad_out, g, *along, rest),
    }


def cost(call: Call) -> Cost:
    o, c, r, s = (call.axes[axis] for axis in "OCRS")
    return conv2d.work(call, (o, c, r, s), *(tuple(t.shape) for t in call.tensors.values()))


def _case(grad_out: str, x: str, kernel: str, more: str = "", **options: Any) -> Case:
    return Case(f"grad_out={grad_out} x={x} kernel={kernel} {more}".strip(), **options)


SPEC = OpSpec(
    name="conv2d_backward_weight",
    version=1,
    family="Images",
    summary="Gradient of conv2d with respect to weight.",
    math="grad_weight[o, c, r, s] = sum over n, p, q of grad_out[n, o, p, q] * x[n, c, p * stride - padding + r * dilation,"
    " q * stride - padding + s * dilation], zeros outside of x; accumulated in fp32, rounded once",
    inputs=(
        Tensor("grad_out", "N O P Q", doc="gradient of the output of conv2d, of any strides"),
        Tensor("x", "N C H W", like="grad_out", doc="as in the forward call"),
        Scalar(
            "kernel",
            int,
            range=(1, conv2d.LARGEST),
            trials=(1, 2, 3, (2, 1)),
            length=2,
            fit=fit,
            doc="rows and columns of a kernel",
        ),
        conv2d.STRIDE,
        conv2d.PADDING,
        conv2d.DILATION,
    ),
    outputs=(Output("grad_weight", like="grad_out", dims="O C R S", order="x"),),
    derive=lengths,
    constraints=(
        Constraint("P >= 1 and Q >= 1", lambda v: v["P"] >= 1 and v["Q"] >= 1),
        Constraint(
            "a kernel with P * Q places on H * W: P = (H + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1",
            fitting,
        ),
    ),
    reference=reference,
    arithmetics=conv2d.SPEC.arithmetics,
    error=ErrorModel(magnitude=magnitude, terms=lambda axes: axes["K"]),
    exact=exact,
    special=conv2d.SPECIAL,
    cases=(
        _case("2x16x7x7", "2x8x7x7", "3", "padding=1", tier="smoke"),
        _case("2x40x5x6", "2x24x5x6", "1"),  # a plain product
        _case("2x24x5x4", "2x16x9x8", "3", "stride=2 padding=1"),
        _case("1x7x9x9", "1x5x9x9", "3", "padding=2 dilation=2"),  # no row of anything is aligned
        _case("1x6x4x4", "1x4x6x11", "2x5", "stride=1x3 padding=0x2 dilation=2x1"),
        _case("1x8x9x8", "1x3x17x15", "7", "stride=2 padding=3"),
        _case("2x65x8x9", "2x33x8x9", "3", "padding=1", dtypes=conv2d.HALVES),  # beyond a tile along every axis
        _case("1x4x1x1", "1x3x3x2", "5x4", "padding=1"),  # as large as the padded image: one place
        _case("2x3x6x6", "2x2x2x2", "1", "padding=2"),  # places that see nothing but padding
        _case("3x8x20x20", "3x4x20x20", "1", inputs="positive"),  # many terms
        _case("2x8x6x5", "2x6x7x6", "2", inputs="cancel"),
        _case("1x24x14x13", "1x16x14x13", "3", "padding=1", dtypes=conv2d.HALVES),  # more stages than a ring has
        _case("1x70x4x3", "1x16x4x3", "3", "channels-last padding=1", dtypes=conv2d.HALVES),
        _case("0x8x3x3", "0x4x5x5", "3"),  # sums without terms
        _case("1x0x4x4", "1x3x4x4", "1"),
        _case("1x4x4x4", "1x0x4x4", "1"),
        _case("4x96x28x30", "4x64x28x30", "3", "padding=1", tier="full"),
        _case("2x64x112x112", "2x3x224x224", "7", "stride=2 padding=3", tier="full"),
        _case("1x129x14x14", "1x257x14x14", "3", "padding=2 dilation=2", inputs="positive", tier="full"),
        _case("3x1024x10x10", "3x256x20x20", "1", "stride=2", tier="full"),
        _case("6x2x28x56", "6x2x28x56", "1", dtypes=conv2d.HALVES, tier="full"),  # many pixels in pieces
        # as wide as kernels of a ResNet get: tiles that begin within a tap
        _case("1x1024x7x7", "1x512x7x7", "3", "padding=1", dtypes=conv2d.HALVES, tier="full"),
        _case("3x72x8x17", "3x48x8x17", "1", dtypes=conv2d.HALVES),  # rows of pixels that end within a step
    ),
    workloads=(
        _case("32x256x56x56", "32x256x56x56", "3", "padding=1", dtypes=conv2d.HALVES),
        _case("32x64x112x112", "32x3x224x224", "7", "stride=2 padding=3", dtypes=conv2d.HALVES),
        _case("32x64x56x56", "32x256x56x56", "1", dtypes=conv2d.HALVES),
        _case("32x128x28x28", "32x128x56x56", "3", "stride=2 padding=1", dtypes=conv2d.HALVES),
    ),
    cost=cost,
    gradient=Composed(("grad_out", "x"), gradients),
)
