"""Gradients of rms_norm with respect to its input and its weight."""

from __future__ import annotations

from dataclasses import replace

import torch

from kernelmux.registry.cases import Case
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.ops import rms_norm
from kernelmux.registry.spec import BatchInvariant, Call, NoExact, NoGradient, OpSpec, Output, SpecialValues, Tensor

Tensors = tuple[torch.Tensor, torch.Tensor]


def reference(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Tensors:
    """float64 autograd of the forward reference: no formula of its own that could be wrong."""
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    with torch.enable_grad():
        y = rms_norm.reference(x, weight, eps)
        grad_x, grad_weight = torch.autograd.grad(y, (x, weight), grad_out)
    return grad_x, grad_weight


def magnitude_x(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """grad_x = r*(g*w - x * r^2 * mean(g*w*x)): the two terms and the sum, on absolute values."""
    r = 1 / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)
    g = (grad_out * weight).abs()
    return r * (g + x.abs() * r * r * (g * x.abs()).mean(-1, keepdim=True))


def magnitude_weight(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    r = 1 / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)
    return (grad_out * x * r).abs().sum(tuple(range(x.dim() - 1))) if x.dim() > 1 else (grad_out * x * r).abs()


def _rows(axes: dict[str, object]) -> int:
    return int(torch.Size(axes["..."]).numel())  # type: ignore[arg-type]


def cost(call: Call) -> Cost:
    x, weight = call.arguments["x"], call.arguments["weight"]
    return Cost(bytes=(3 * x.numel() + 2 * weight.numel()) * x.element_size(), flops=10 * x.numel())


def _case(x: str, more: str = "", **options: object) -> Case:
    n = x.split("x")[-1]
    return Case(f"grad_out={x} x={x} weight={n} {more}".strip(), **options)  # type: ignore[arg-type]


SPEC = OpSpec(
    name="rms_norm_backward",
    version=1,
    summary="Gradients of rms_norm.",
    math="r = 1/sqrt(mean(x^2) + eps); grad_x = r*(g*w - x*r^2*mean(g*w*x)); grad_weight = sum over rows of g*x*r",
    sources=("Zhang and Sennrich, Root mean square layer normalization, 2019",),
    inputs=(
        Tensor("grad_out", "... N", doc="gradient of the output of rms_norm"),
        Tensor("x", "... N", like="grad_out"),
        Tensor("weight", "N", like="grad_out"),
        replace(rms_norm.EPS, doc="as in the forward call"),
    ),
    outputs=(Output("grad_x", like="x"), Output("grad_weight", like="weight")),
    reference=reference,
    arithmetics=("fp32", "fp32_sequential"),
    error=(
        ErrorModel(magnitude=magnitude_x, terms=lambda axes: axes["N"], flushes=True),
        ErrorModel(magnitude=magnitude_weight, terms=lambda axes: axes["N"] + _rows(dict(axes)), flushes=True),
    ),
    exact=NoExact(
        "the mean of g*w*x meets r^3: no choice of powers of two keeps every order exact and the result non-zero"
    ),
    special=SpecialValues(undefined={"largest": "its square overflows fp32, in which the mean is defined"}),
    cases=(
        _case("4x128", tier="smoke"),
        _case("17"),
        _case("1x1"),
        _case("37x1000"),
        _case("3x5x65"),
        _case("130x33"),
        _case("5x1025"),
        _case("2x4096"),
        _case("0x16"),
        _case("3x0"),
        _case("9x515", inputs="offset"),
        _case("9x515", inputs="wide"),
        _case("9x515", inputs="sparse"),
        _case("33x33"),
        _case("7x1x2"),
        _case("4x65", "eps=0.0"),
        _case("4x65", "eps=1.0"),
        _case("4x130", "eps=1e-3", inputs="small"),
        _case("5x65", inputs="vast", dtypes=(torch.float32, torch.bfloat16)),
        _case("7x33", inputs="gaps"),
        _case("7x33", "eps=0.0", inputs="gaps"),
        _case("70000x33", tier="full"),
        _case("128x16384", tier="full"),
        _case("4096x8192", tier="full"),
    ),
    workloads=(_case("4096x1024"), _case("16384x8192")),
    cost=cost,
    gradient=NoGradient("a gradient itself: torch_ref differentiates it"),
    properties=(BatchInvariant(),),
)
