"""Gradient of hard swish with respect to its input."""

from __future__ import annotations

import torch

from kernelmux.registry.cases import Case, integers
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import Call, NoGradient, OpSpec, Output, Tensor


def slope(x: torch.Tensor, half: torch.Tensor) -> torch.Tensor:
    """Of the parabola x / 3 + 1 / 2, its two ends with it; 0 below and 1 above. half: x / 3, or its absolute value."""
    return torch.where(x < -3, 0.0, torch.where(x > 3, 1.0, half + 0.5))


def reference(grad_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return grad_out * torch.where(x.isnan(), x, slope(x, x / 3))


def exact(case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Multiples of 3, where the slope is a multiple of 1/2."""
    grad_out = integers(case.shapes["grad_out"], dtype, rng, 6)
    return {"grad_out": grad_out, "x": 3 * integers(case.shapes["x"], dtype, rng, 6)}


def cost(call: Call) -> Cost:
    x = call.arguments["x"]
    return Cost(bytes=3 * x.nbytes, flops=5 * x.numel())


def case(x: str, tier: str = "ci") -> Case:
    return Case(f"grad_out={x} x={x}", tier=tier)


SPEC = OpSpec(
    name="hardswish_backward",
    version=1,
    summary="Gradient of hard swish.",
    math="grad_x = grad_out * (0 if x < -3, 1 if x > 3, else x / 3 + 1 / 2)",
    inputs=(
        Tensor("grad_out", "...", doc="gradient of the output of hardswish"),
        Tensor("x", "...", like="grad_out", breakpoints=(-3.0, 3.0), doc="the input of the forward call"),
    ),
    outputs=(Output("grad_x", like="x"),),
    derive=lambda a, axes: {"N": a["x"].numel()},
    reference=reference,
    error=ErrorModel(
        magnitude=lambda grad_out, x: grad_out.abs() * slope(x, x.abs() / 3),  # x / 3 and 1 / 2 may cancel
        flushes=True,
    ),
    exact=exact,
    cases=(case("1000", "smoke"), case("scalar"), case("4x5x6"), case("4099"), case("0")),
    workloads=(case("4096x1024"), case("67108864")),
    cost=cost,
    gradient=NoGradient("a gradient itself: torch_ref differentiates it"),
)
