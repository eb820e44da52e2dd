"""Gradients of add_rms_norm with respect to its input (and so its residual) and its weight."""

from __future__ import annotations

import torch

from kernelmux.registry.cost import Cost
from kernelmux.registry.ops import rms_norm, rms_norm_backward
from kernelmux.registry.ops._norm_gradients import Tensors, case_of, common_cases, row_error, weight_error
from kernelmux.registry.spec import BatchInvariant, Call, NoGradient, OpSpec, Output, Tensor

_case = case_of("grad_y", "grad_total", "total")


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


def cost(call: Call) -> Cost:
    total, weight = call.arguments["total"], call.arguments["weight"]
    return Cost(bytes=(4 * total.numel() + 2 * weight.numel()) * total.element_size(), flops=11 * total.numel())


SPEC = OpSpec(
    name="add_rms_norm_backward",
    version=1,
    family="Rows",
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
        rms_norm.EPS_BACKWARD,
    ),
    outputs=(
        Output("grad_x", like="total", doc="the gradient of the input and of the residual alike"),
        Output("grad_weight", like="weight"),
    ),
    reference=reference,
    arithmetics=("fp32", "fp32_sequential"),
    error=(row_error(magnitude_x), weight_error(magnitude_weight)),
    exact=rms_norm_backward.SPEC.exact,
    special=rms_norm.SPEC.special,
    cases=(
        *common_cases(_case),
        _case("3x5x65"),
        _case("33x33"),
        _case("7x1x2"),
        _case("2x4099"),
        _case("11x4104", dtypes=(torch.float16,)),  # several rows one after another in a block of columns
        _case("4x65", "eps=1.0"),
        _case("7x33", inputs="gaps"),
    ),
    workloads=(_case("4096x1024"), _case("16384x8192")),
    cost=cost,
    gradient=NoGradient("a gradient itself: torch_ref differentiates it"),
    properties=(BatchInvariant(),),
)
