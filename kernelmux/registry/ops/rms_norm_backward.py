"""Gradients of rms_norm with respect to its input and its weight."""

from __future__ import annotations

import torch

from kernelmux.registry.cost import Cost
from kernelmux.registry.ops import rms_norm
from kernelmux.registry.ops._norm_gradients import Tensors, case_of, common_cases, over_rows, row_error, weight_error
from kernelmux.registry.spec import BatchInvariant, Call, NoExact, NoGradient, OpSpec, Output, Tensor

_case = case_of("grad_out", "x")


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
    return over_rows((grad_out * x * r).abs())


def cost(call: Call) -> Cost:
    x, weight = call.arguments["x"], call.arguments["weight"]
    return Cost(bytes=(3 * x.numel() + 2 * weight.numel()) * x.element_size(), flops=10 * x.numel())


SPEC = OpSpec(
    name="rms_norm_backward",
    version=1,
    family="Rows",
    summary="Gradients of rms_norm.",
    math="r = 1/sqrt(mean(x^2) + eps); grad_x = r*(g*w - x*r^2*mean(g*w*x)); grad_weight = sum over rows of g*x*r",
    sources=("Zhang and Sennrich, Root mean square layer normalization, 2019",),
    inputs=(
        Tensor("grad_out", "... N", doc="gradient of the output of rms_norm"),
        Tensor("x", "... N", like="grad_out"),
        Tensor("weight", "N", like="grad_out"),
        rms_norm.EPS_BACKWARD,
    ),
    outputs=(Output("grad_x", like="x"), Output("grad_weight", like="weight")),
    reference=reference,
    arithmetics=("fp32", "fp32_sequential"),
    error=(row_error(magnitude_x), weight_error(magnitude_weight)),
    exact=NoExact(
        "the mean of g*w*x meets r^3: no choice of powers of two keeps every order exact and the result non-zero"
    ),
    special=rms_norm.SPEC.special,
    cases=(
        *common_cases(_case),
        _case("3x5x65"),
        _case("5x1025"),
        _case("2x4096"),
        _case("2x9600"),  # in fp32 more bytes than a block keeps of a row
        _case("9x515", inputs="sparse"),
        _case("33x33"),
        _case("7x1x2"),
        _case("4x65", "eps=0.0"),
        _case("4x65", "eps=1.0"),
        _case("4x130", "eps=1e-3", inputs="small"),
        _case("5x65", inputs="vast", dtypes=(torch.float32, torch.bfloat16)),
        _case("7x33", inputs="gaps"),
        _case("7x33", "eps=0.0", inputs="gaps"),
        _case("3x9601", dtypes=(torch.bfloat16,)),  # several pieces of a row that begins anywhere
    ),
    workloads=(_case("4096x1024"), _case("16384x8192")),
    cost=cost,
    gradient=NoGradient("a gradient itself: torch_ref differentiates it"),
    properties=(BatchInvariant(),),
)
