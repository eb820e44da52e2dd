"""Softmax along one axis, with a scale folded into the exponent."""

from __future__ import annotations

import math

import torch

from kernelmux.registry.cases import Case
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import (
    Axis,
    BatchInvariant,
    Call,
    Gradient,
    OpSpec,
    Output,
    PermutationInvariant,
    Scalar,
    ShiftInvariant,
    SpecialValues,
    Tensor,
)


def reference(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    if x.shape[axis] == 0:
        return torch.zeros_like(x)
    z = scale * x
    e = torch.exp(z - z.amax(axis, keepdim=True))
    return e / e.sum(axis, keepdim=True)


def magnitude(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """exp amplifies the rounding of its argument: |y| * (1 + |z - max z|); a distance of 0 * inf counts as nothing."""
    if x.numel() == 0:
        return torch.zeros_like(x)
    z = scale * x
    distance = (z - z.amax(axis, keepdim=True)).abs()
    return (reference(x, axis, scale) * (1 + distance)).nan_to_num(nan=0.0)


def amplified(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """How far rounding z = scale * x to fp32 reaches: y_i * ((1 - y_i) * |z_i| + sum over j != i of y_j * |z_j|).

    A relative error d_j of each z_j changes y_i by y_i * (d_i * z_i - sum over all j of y_j * d_j * z_j): what is common
    to all cancels, so a row with one large weight may not be off at all. A scale that is a power of two rounds nothing.
    """
    if x.numel() == 0 or math.frexp(scale)[0] in (0.0, 0.5, -0.5):
        return torch.zeros_like(x)
    y = reference(x, axis, scale)
    w = (y * (scale * x).abs()).nan_to_num(nan=0.0)
    return w * (1 - y) + y * (w.sum(axis, keepdim=True) - w)


def exact(case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, torch.Tensor] | None:
    """2^k equal entries per row, the others infinitely far below: terms are 0 or 1, and every format holds 2^-k."""
    shape = case.shapes["x"]
    axis = case.scalars.get("axis", -1)
    scale = case.scalars.get("scale", 1.0)
    if 0 in shape or not shape or scale == 0:
        return None
    n = shape[axis]
    count = 2 ** min(int(n).bit_length() - 1, 12)
    order = torch.rand(shape, generator=rng).argsort(axis)
    return {"x": torch.where(order < count, 0.5, math.copysign(math.inf, -scale)).to(dtype)}


def cost(call: Call) -> Cost:
    x = call.arguments["x"]
    return Cost(bytes=2 * x.numel() * x.element_size(), flops=5 * x.numel())


OVERFLOW = "scale * x overflows fp32"
SCALE = Scalar(
    "scale",
    float,
    1.0,
    range=(-1e18, 1e18),
    trials=(0.0, -0.0, 1e-46, -0.5, 0.3, 3.0, -3.0, 1e-3, 100.0, 1e5, -1e5, 1e18, -1e18),
    doc="factor on x before the exponential, -1e18 to 1e18; scale * x must stay within fp32, and 0 * -inf is NaN",
)
SINGLE = (torch.float32,)

SPEC = OpSpec(
    name="softmax",
    version=1,
    family="Rows",
    summary="Softmax along one axis.",
    math="y = exp(scale*x - m) / sum(exp(scale*x - m)), m = max(scale*x) along axis",
    sources=("Milakov and Gimelshein, Online normalizer calculation for softmax, 2018",),
    inputs=(
        Tensor("x", "...", doc="any shape with at least one axis"),
        Axis("axis", of="x", default=-1, doc="the axis that sums to one"),
        SCALE,
    ),
    outputs=(Output("y", like="x"),),
    derive=lambda a, axes: {"N": a["x"].shape[a["axis"]]},
    reference=reference,
    error=ErrorModel(magnitude=magnitude, terms=lambda axes: axes["N"], amplified=amplified, flushes=True),
    exact=exact,
    special=SpecialValues(undefined={"largest fp32": OVERFLOW, "largest bf16": OVERFLOW}),
    cases=(
        Case("x=4x100", tier="smoke"),
        Case("x=1x1"),
        Case("x=3x33 scale=0.125"),
        Case("x=37x1000"),
        Case("x=5x1025"),
        Case("x=2x4096"),
        Case("x=1x8191"),
        Case("x=17"),
        Case("x=7x31x5 axis=1"),
        Case("x=64x130 axis=0"),
        Case("x=2x3x4x65 axis=-2 scale=-20.0"),
        Case("x=33x33 axis=0"),
        Case("x=5x5x5 axis=1"),
        Case("x=3x4x7"),
        Case("x=1x7x1 axis=1"),
        Case("x=6x1 scale=-2.0"),
        Case("x=0x16"),
        Case("x=3x0"),
        Case("x=4x70 scale=0.0"),
        Case("x=4x130 scale=-0.3"),
        Case("x=3x128 scale=-0.7"),
        Case("x=66x5 axis=0 scale=-3.0", inputs="wide"),
        Case("x=9x515 scale=0.3", inputs="offset"),
        Case("x=9x515 scale=10.0", inputs="cancel"),
        Case("x=40x6 axis=0 scale=-3.0"),
        Case("x=600x40 axis=0"),
        Case("x=1x40000", dtypes=(torch.bfloat16,)),  # beyond what registers of a block hold
        Case("x=1x40008", dtypes=SINGLE),
        Case("x=2x9001", inputs="masked", dtypes=SINGLE),  # blocks of 4,096 that are all -inf, before the first number
        Case("x=3x700 scale=0.3", inputs="masked"),
        Case("x=830x3 axis=0", inputs="masked"),  # the first 512 rows are all -inf
        Case("x=9x515", inputs="offset"),
        Case("x=9x515", inputs="wide"),
        Case("x=9x515", inputs="cancel"),
        Case("x=128x65536", tier="full"),
        Case("x=70000x33", tier="full"),
        Case("x=4x262147", tier="full"),
        Case("x=3x131072x5 axis=1", tier="full"),
        Case("x=4096x8192", tier="full"),
    ),
    workloads=(
        Case("x=4096x1024"),
        Case("x=16384x8192"),
        Case("x=32768x16384"),
        # Lengths that are no power of two, or odd, and few long rows.
        *(Case(f"x={x}", dtypes=(torch.bfloat16,)) for x in ("8192x5000", "16384x12288", "2048x50257", "512x131072")),
    ),
    cost=cost,
    gradient=Gradient("softmax_backward", wrt=("x",), saves=("y",)),
    properties=(BatchInvariant(), ShiftInvariant("x"), PermutationInvariant("x")),
)
