"""Gradients of layer_norm with respect to its input, its weight and its bias."""

from __future__ import annotations

from dataclasses import replace

import torch

from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.ops import layer_norm
from kernelmux.registry.ops._norm_gradients import (
    Tensors,
    case_of,
    common_cases,
    count_rows,
    over_rows,
    row_error,
    weight_error,
)
from kernelmux.registry.spec import BatchInvariant, Call, NoExact, NoGradient, OpSpec, Output, SpecialValues, Tensor

_case = case_of("grad_out", "x")


def reference(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Tensors:
    """float64 autograd of the forward reference: no formula of its own that could be wrong."""
    x, weight, bias = (t.detach().requires_grad_() for t in (x, weight, torch.zeros_like(weight)))
    with torch.enable_grad():
        return torch.autograd.grad(layer_norm.reference(x, weight, bias, eps), (x, weight, bias), grad_out)


def magnitude_x(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """grad_x = r * (g*w - mean(g*w) - h * mean(g*w*h)), h = c * r: the terms on absolute values.

    An error of the mean shifts h by up to e = r * mean |x| (`layer_norm.spread`), once in each place where it stands, and
    in both of them where a row hardly varies.
    """
    c, r = layer_norm.centred(x, eps)
    e, h = layer_norm.spread(x, eps), (c * r).abs()
    g = (grad_out * weight).abs()
    level, slope, twice = g.mean(-1, keepdim=True), (g * h).mean(-1, keepdim=True), e * e * layer_norm.MEAN_SQUARED
    return r * ((g + level + h * slope) * (1 + twice) + e * slope + h * e * level + twice * level)


def magnitude_weight(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """grad_weight = sum over rows of g * h; see `magnitude_x`."""
    c, r = layer_norm.centred(x, eps)
    e = layer_norm.spread(x, eps)
    return over_rows(grad_out.abs() * ((c * r).abs() * (1 + e * e * layer_norm.MEAN_SQUARED) + e))


def magnitude_bias(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return over_rows(grad_out.abs())


def cost(call: Call) -> Cost:
    x, weight = call.arguments["x"], call.arguments["weight"]
    return Cost(bytes=(3 * x.numel() + 3 * weight.numel()) * x.element_size(), flops=14 * x.numel())


INFINITE = "infinities of both signs meet in an order that the formula leaves open"

SPEC = OpSpec(
    name="layer_norm_backward",
    version=1,
    family="Rows",
    summary="Gradients of layer_norm.",
    math="r = 1/sqrt(var(x) + eps); h = (x - mean(x))*r; grad_x = r*(g*w - mean(g*w) - h*mean(g*w*h));"
    " grad_weight = sum over rows of g*h; grad_bias = sum over rows of g",
    sources=("Ba, Kiros and Hinton, Layer normalization, 2016",),
    inputs=(
        Tensor("grad_out", "... N", doc="gradient of the output of layer_norm"),
        Tensor("x", "... N", like="grad_out", doc="as in the forward call"),
        Tensor("weight", "N", like="grad_out", doc="as in the forward call"),
        replace(layer_norm.EPS, doc="as in the forward call"),
    ),
    outputs=(Output("grad_x", like="x"), Output("grad_weight", like="weight"), Output("grad_bias", like="weight")),
    reference=reference,
    arithmetics=("fp32", "fp32_sequential"),
    error=(
        row_error(magnitude_x),
        weight_error(magnitude_weight),
        ErrorModel(magnitude=magnitude_bias, terms=count_rows, flushes=True),
    ),
    exact=NoExact("means of products of g, w and h meet: no choice of powers of two keeps every order exact"),
    special=SpecialValues(
        undefined={
            "largest": "its square overflows fp32, in which the variance is defined",
            "inf": INFINITE,
            "-inf": INFINITE,
        }
    ),
    cases=(
        *common_cases(_case),
        _case("3x5x65", "eps=1e-3"),
        _case("2x4099"),
        _case("2x9600"),  # sums of more columns than a block keeps
        _case("11x4104", dtypes=(torch.float16,)),  # several rows one after another in a block of columns
        _case("33x33", inputs="gaps"),
        _case("3x12301", dtypes=(torch.float16,)),  # several pieces of a row that begins anywhere
    ),
    workloads=(_case("4096x1024"), _case("16384x8192"), _case("8192x5120"), _case("2048x18432")),
    cost=cost,
    gradient=NoGradient("a gradient itself: torch_ref differentiates it"),
    properties=(BatchInvariant(),),
)
