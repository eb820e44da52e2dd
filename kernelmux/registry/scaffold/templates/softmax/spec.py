"""newop of the rows along one axis."""

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
    Composed,
    OpSpec,
    Output,
    PermutationInvariant,
    ShiftInvariant,
    SpecialValues,
    Tensor,
)


def reference(x: torch.Tensor, axis: int) -> torch.Tensor:
    if x.shape[axis] == 0:
        return torch.zeros_like(x)
    # TODO(newop): the formula, slow and obvious; it is evaluated in float64
    e = torch.exp(x - x.amax(axis, keepdim=True))
    return e / e.sum(axis, keepdim=True)


def magnitude(x: torch.Tensor, axis: int) -> torch.Tensor:
    """What roundings in fp32 are relative to; of a sum, its terms on absolute values."""
    if x.shape[axis] == 0:
        return torch.zeros_like(x)
    # TODO(newop): often reference(x, axis).abs(); exp makes a rounding of its argument as large as that is
    distance = (x - x.amax(axis, keepdim=True)).abs()
    return (reference(x, axis) * (1 + distance)).nan_to_num(nan=0.0)


def exact(case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, torch.Tensor] | None:
    """Inputs with which every order of evaluation gives the same bits; None if this case has none."""
    # TODO(newop): or, below, exact=NoExact("why there are none"); here 2^k equal entries, the others -inf
    shape, axis = case.shapes["x"], case.scalars.get("axis", -1)
    if 0 in shape:
        return None
    count = 2 ** min(shape[axis].bit_length() - 1, 12)
    order = torch.rand(shape, generator=rng).argsort(axis)
    return {"x": torch.where(order < count, 0.5, -math.inf).to(dtype)}


def gradient(y: torch.Tensor, grad: torch.Tensor, axis: int) -> torch.Tensor:
    return (grad - (grad * y).sum(axis, keepdim=True)) * y  # TODO(newop): of the values that it needs


def cost(call: Call) -> Cost:
    x = call.arguments["x"]
    return Cost(bytes=2 * x.numel() * x.element_size(), flops=5 * x.numel())  # TODO(newop): per element


SPEC = OpSpec(
    name="newop",
    version=1,
    family="Rows",
    summary="newop along one axis.",  # TODO(newop): one sentence
    math="y = exp(x - m) / sum(exp(x - m)), m = max(x) along axis",  # TODO(newop): the formula, for readers
    inputs=(
        Tensor("x", "...", doc="any shape with at least one axis"),
        Axis("axis", of="x", default=-1, doc="the axis along which a row runs"),
    ),
    outputs=(Output("y", like="x"),),
    derive=lambda a, axes: {"N": a["x"].shape[a["axis"]]},
    reference=reference,
    error=ErrorModel(magnitude=magnitude, terms=lambda axes: axes["N"], flushes=True),  # terms: of the sum of a row
    exact=exact,
    # TODO(newop): for what no kernel in fp32 can give, as undefined={"largest": "its square overflows"}
    special=SpecialValues(),
    # TODO(newop): inputs of kernelmux.registry.cases that are hard for the formula
    cases=(
        Case("x=4x100", tier="smoke"),
        Case("x=1x1"),
        Case("x=17"),
        Case("x=37x1000"),
        Case("x=5x1025"),
        Case("x=2x4099"),
        Case("x=7x31x5 axis=1"),
        Case("x=64x130 axis=0"),
        Case("x=2x3x4x65 axis=-2"),
        Case("x=33x33 axis=0"),
        Case("x=5x5x5 axis=1"),
        Case("x=1x7x1 axis=1"),
        Case("x=0x16"),
        Case("x=3x0"),
        Case("x=9x515", inputs="offset"),
        Case("x=9x515", inputs="wide"),
        Case("x=9x515", inputs="cancel"),
        Case("x=3x700", inputs="masked"),
        Case("x=70000x33", tier="full"),
        Case("x=128x65536", tier="full"),
        Case("x=4x262147", tier="full"),
        Case("x=3x131072x5 axis=1", tier="full"),
    ),
    workloads=(Case("x=4096x1024"), Case("x=16384x8192")),
    cost=cost,
    autocast="fp32",
    # TODO(newop): of values v["x"], v["axis"] and v["y"]; or NoGradient("why there is none")
    gradient=Composed(("x",), lambda kx, v, g: {"x": gradient(v["y"], g["y"], v["axis"])}),
    # TODO(newop): those that hold; the last two: a row shifted by a number, and one permuted
    properties=(BatchInvariant(), ShiftInvariant("x"), PermutationInvariant("x")),
)
