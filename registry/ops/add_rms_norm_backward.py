"""Gradients of add_rms_norm with respect to its input (and so its residual) and its weight."""

from __future__ import annotations

from dataclasses import replace

import torch

from kernelmux.registry.cases import Case
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.ops import rms_norm, rms_norm_backward
from kernelmux.registry.spec import BatchInvariant, Call, NoExact, NoGradient, OpSpec, Output, SpecialValues, Tensor

Tensors = tuple[torch.Tensor, torch.Tensor]


def reference(
    grad_y: torch.Tensor, grad_total: torch.Tensor, total: torch.Tensor, weight: torch.Tensor, eps: float
) -> Tensors:
    grad_x, grad_weight = rms_norm_backward.reference(grad_y, total, weight, eps)
    return grad_total + grad_x, grad_weight


def magnitude_x(
    grad_y: torch.Tensor, grad_total: torch.Tensor, total: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    return grad_total.abs() + rms_norm_backward.magnitude_x(grad_y, total, weight, eps)


def magnitude_weight(
    grad_y: torch.Tensor, grad_total: torch.Tensor, total: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    return rms_norm_backward.magnitude_weight(grad_y, total, weight, eps)


def _rows(axes: dict[str, object]) -> int:
    return int(torch.Size(axes["..."]).numel())  # type: ignore[arg-type]


def cost(call: Call) -> Cost:
    total, weight = call.arguments["total"], call.arguments["weight"]
    return Cost(bytes=(4 * total.numel() + 2 * weight.numel()) * total.element_size(), flops=11 * total.numel())


def _case(x: str, more: str = "", **options: object) -> Case:
    n = x.split("x")[-1]
    return Case(f"grad_y={x} grad_total={x} total={x} weight={n} {more}".strip(), **options)  # type: ignore[arg-type]


SPEC = OpSpec(
    name="add_rms_norm_backward",
    version=1,
    summary="Gradients of add_rms_norm.",
    math=(
        "r = 1/sqrt(mean(t^2) + eps); grad_x = grad_total + r*(g*w - t*r^2*mean(g*w*t));"
        " grad_weight = sum over rows of g*t*r; t = total, g = grad_y"
    ),
    sources=("Zhang and Sennrich, Root mean square layer normalization, 2019",),
    inputs=(
        Tensor("grad_y", "... N", doc="gradient of the normalised output"),
        Tensor("grad_total", "... N", like="grad_y", doc="gradient of the sum"),
        Tensor("total", "... N", like="grad_y", doc="the sum, as the forward call returned it"),
        Tensor("weight", "N", like="grad_y"),
        replace(rms_norm.EPS, doc="as in the forward call"),
    ),
    outputs=(
        Output("grad_x", like="total", doc="the gradient of the input and of the residual alike"),
        Output("grad_weight", like="weight"),
    ),
    reference=reference,
    arithmetics=("fp32", "fp32_sequential"),
    error=(
        ErrorModel(magnitude=magnitude_x, terms=lambda axes: axes["N"], flushes=True),
        ErrorModel(magnitude=magnitude_weight, terms=lambda axes: axes["N"] + _rows(dict(axes)), flushes=True),
    ),
    exact=NoExact(
        "the mean of g*w*t meets r^3: no choice of powers of two keeps every order exact and the result non-zero"
    ),
    special=SpecialValues(undefined={"largest": "its square overflows fp32, in which the mean is defined"}),
    cases=(
        _case("4x128", tier="smoke"),
        _case("17"),
        _case("1x1"),
        _case("37x1000"),
        _case("3x5x65"),
        _case("130x33"),
        _case("33x33"),
        _case("7x1x2"),
        _case("2x4099"),
        _case("0x16"),
        _case("3x0"),
        _case("9x515", inputs="offset"),
        _case("9x515", inputs="wide"),
        _case("4x65", "eps=1.0"),
        _case("7x33", inputs="gaps"),
        _case("70000x33", tier="full"),
        _case("128x16384", tier="full"),
        _case("4096x8192", tier="full"),
    ),
    workloads=(_case("4096x1024"), _case("16384x8192")),
    cost=cost,
    gradient=NoGradient("a gradient itself: torch_ref differentiates it"),
    properties=(BatchInvariant(),),
)
