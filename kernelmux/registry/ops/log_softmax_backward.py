"""Gradient of log_softmax with respect to its input, from its output."""

from __future__ import annotations

import torch

from kernelmux.registry.cases import Case
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import (
    Axis,
    BatchInvariant,
    Call,
    LogProbabilities,
    NoExact,
    NoGradient,
    OpSpec,
    Output,
    SpecialValues,
    Tensor,
)


def reference(grad_out: torch.Tensor, y: torch.Tensor, axis: int) -> torch.Tensor:
    return grad_out - y.exp() * grad_out.sum(axis, keepdim=True)


def magnitude(grad_out: torch.Tensor, y: torch.Tensor, axis: int) -> torch.Tensor:
    """Both terms on absolute values."""
    return grad_out.abs() + y.exp() * grad_out.abs().sum(axis, keepdim=True)


def amplified(grad_out: torch.Tensor, y: torch.Tensor, axis: int) -> torch.Tensor:
    """exp amplifies what its argument is rounded by: |y| of it."""
    return (y.abs() * y.exp() * grad_out.sum(axis, keepdim=True).abs()).nan_to_num(nan=0.0)


def cost(call: Call) -> Cost:
    y = call.arguments["y"]
    return Cost(bytes=3 * y.numel() * y.element_size(), flops=4 * y.numel())


def _case(x: str, more: str = "", **options: object) -> Case:
    return Case(f"grad_out={x} y={x} {more}".strip(), **options)  # type: ignore[arg-type]


SPEC = OpSpec(
    name="log_softmax_backward",
    version=1,
    family="Rows",
    summary="Gradient of log_softmax.",
    math="grad_x = grad_out - exp(y) * sum(grad_out), the sum along axis",
    inputs=(
        Tensor("grad_out", "...", doc="gradient of the output of log_softmax; at least one axis"),
        Tensor(
            "y",
            "...",
            like="grad_out",
            domain=LogProbabilities("axis"),
            doc="the output of log_softmax; the formula takes any values",
        ),
        Axis("axis", of="y", default=-1, doc="as in the forward call"),
    ),
    outputs=(Output("grad_x", like="y"),),
    derive=lambda a, axes: {"N": a["y"].shape[a["axis"]]},
    reference=reference,
    error=ErrorModel(magnitude=magnitude, terms=lambda axes: axes["N"], amplified=amplified, flushes=True),
    exact=NoExact("the exponential is transcendental: only 0 and the infinities give the same bits everywhere"),
    special=SpecialValues(undefined={"largest": "sums of it, and its exponential, overflow fp32"}),
    cases=(
        _case("4x100", tier="smoke"),
        _case("1x1"),
        _case("17"),
        _case("37x1000"),
        _case("3x4099"),
        _case("2x8192", dtypes=(torch.bfloat16,)),
        _case("1x33001"),
        _case("64x130", "axis=0"),
        _case("7x31x5", "axis=1"),
        _case("5x5x5", "axis=1"),
        _case("1x7x1", "axis=1"),
        _case("33x33"),
        _case("0x16"),
        _case("3x0"),
        _case("9x515", inputs="small"),
        _case("9x515", inputs="sparse"),
        _case("70000x33", tier="full"),
        _case("128x65536", tier="full"),
        _case("3x262147", tier="full", dtypes=(torch.float32,)),
        _case("3x131072x5", "axis=1", tier="full"),
    ),
    workloads=(_case("4096x1024"), _case("16384x8192"), _case("2048x50257")),
    cost=cost,
    gradient=NoGradient("a gradient itself: torch_ref differentiates it"),
    properties=(BatchInvariant(),),
)
