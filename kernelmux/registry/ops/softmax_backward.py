"""Gradient of softmax with respect to its input, from its output."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from kernelmux.registry.cases import Case
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.ops import softmax
from kernelmux.registry.spec import Axis, BatchInvariant, Call, NoGradient, OpSpec, Output, SpecialValues, Tensor


def reference(grad_out: torch.Tensor, y: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return scale * y * (grad_out - (grad_out * y).sum(axis, keepdim=True))


def magnitude(grad_out: torch.Tensor, y: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """Both terms on absolute values."""
    return abs(scale) * y.abs() * (grad_out.abs() + (grad_out * y).abs().sum(axis, keepdim=True))


def exact(case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, torch.Tensor] | None:
    """y of 2 and 4, at most four small integers of grad_out beside zeros: every product and sum is an integer that each
    dtype holds, and no result is a zero, whose sign the formula leaves open."""
    shape = case.shapes["y"]
    axis, scale = case.scalars.get("axis", -1), case.scalars.get("scale", 1.0)
    if 0 in shape or math.frexp(scale)[0] not in (0.5, -0.5):
        return None
    order = torch.rand(shape, generator=rng).argsort(axis)
    grad = torch.where(order < 4, torch.randint(1, 5, shape, generator=rng), 0)
    y = 2.0 ** torch.randint(1, 3, shape, generator=rng)
    return {"grad_out": grad.to(dtype), "y": y.to(dtype)}


def cost(call: Call) -> Cost:
    y = call.arguments["y"]
    return Cost(bytes=3 * y.numel() * y.element_size(), flops=5 * y.numel())


def _case(x: str, more: str = "", **options: object) -> Case:
    return Case(f"grad_out={x} y={x} {more}".strip(), **options)  # type: ignore[arg-type]


INFINITE = dict.fromkeys(("inf", "-inf"), "y is a probability: of an infinite one the forms of the formula differ")

SPEC = OpSpec(
    name="softmax_backward",
    version=1,
    family="Rows",
    summary="Gradient of softmax.",
    math="grad_x = scale * y * (grad_out - sum(grad_out * y)), the sum along axis",
    inputs=(
        Tensor("grad_out", "...", doc="gradient of the output of softmax; at least one axis"),
        Tensor("y", "...", like="grad_out", doc="the output of softmax; the formula takes any values"),
        Axis("axis", of="y", default=-1, doc="as in the forward call"),
        replace(softmax.SCALE, trials=(0.0, -0.5, 0.3, -3.0, 1e-3, 1e4), doc="as in the forward call"),
    ),
    outputs=(Output("grad_x", like="y"),),
    derive=lambda a, axes: {"N": a["y"].shape[a["axis"]]},
    reference=reference,
    error=ErrorModel(magnitude=magnitude, terms=lambda axes: axes["N"], flushes=True),
    exact=exact,
    special=SpecialValues(undefined={"largest": "its product with the other tensor overflows fp32"} | INFINITE),
    cases=(
        _case("4x100", tier="smoke"),
        _case("1x1"),
        _case("17"),
        _case("37x1000", "scale=0.3"),
        _case("3x4099"),
        _case("1x33001"),
        _case("64x130", "axis=0"),
        _case("7x31x5", "axis=1 scale=-2.0"),
        _case("5x5x5", "axis=1"),
        _case("1x7x1", "axis=1"),
        _case("33x33", "scale=0.0"),
        _case("0x16"),
        _case("3x0"),
        _case("9x515", inputs="offset"),
        _case("9x515", inputs="cancel"),
        _case("70x6", "axis=0", inputs="wide"),
        _case("70000x33", inputs="positive", tier="full"),
        _case("128x65536", inputs="positive", tier="full"),
        _case("3x262147", inputs="positive", tier="full"),
        _case("3x131072x5", "axis=1", inputs="positive", tier="full"),
    ),
    workloads=(_case("4096x1024"), _case("16384x8192"), _case("8192x5000")),
    cost=cost,
    gradient=NoGradient("a gradient itself: torch_ref differentiates it"),
    properties=(BatchInvariant(),),
)
