"""Gradient of silu with respect to its input."""

from __future__ import annotations

import torch

from kernelmux.registry.cases import Case
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.ops import silu
from kernelmux.registry.spec import Call, NoExact, NoGradient, OpSpec, Output, Tensor

SATURATED = 17.0  # 1 - sigmoid(x) is below 2^-24 from here on: sigmoid(x) is 1 in fp32


def derivative(x: torch.Tensor) -> torch.Tensor:
    """float64 autograd of the forward reference, element by element; at the infinities its limits, 0 and 1."""
    with torch.inference_mode(False), torch.enable_grad():
        z = x.clamp(-silu.FAR, silu.FAR).detach().requires_grad_()
        (found,) = torch.autograd.grad(silu.formula(z).sum(), z)
    return found


def reference(grad_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return grad_out * derivative(x)


def slope_magnitude(x: torch.Tensor) -> torch.Tensor:
    """silu'(x) = s + x * s * (1 - s): both terms on absolute values, and what is left where s = sigmoid(x) underflows."""
    z = x.clamp(-silu.FAR, silu.FAR)
    below = silu.UNDERFLOW * (1 + x.clamp(-silu.GONE, 0).abs())
    return torch.sigmoid(z) * (1 + z.abs() * torch.sigmoid(-z)) + below


def slope_amplified(x: torch.Tensor) -> torch.Tensor:
    """What an error of the exponent's argument, |x| of it, gives; and what 1 - s gives if it is taken from a rounded s."""
    z = x.clamp(-silu.FAR, silu.FAR)
    s = torch.sigmoid(z)
    return s * (z.abs() * torch.sigmoid(-z) * (1 + z.abs()) + z.clamp(0, SATURATED))


def cost(call: Call) -> Cost:
    x = call.arguments["x"]
    return Cost(bytes=3 * x.numel() * x.element_size(), flops=9 * x.numel())


def _case(x: str, **options: object) -> Case:
    return Case(f"grad_out={x} x={x}", **options)  # type: ignore[arg-type]


SPEC = OpSpec(
    name="silu_backward",
    version=1,
    family="Element by element",
    summary="Gradient of silu.",
    math="grad_x = grad_out * s * (1 + x * (1 - s)), s = sigmoid(x)",
    sources=(
        "Elfwing, Uchibe and Doya, Sigmoid-weighted linear units for neural network function approximation, 2017",
    ),
    inputs=(
        Tensor("grad_out", "...", doc="gradient of the output of silu"),
        Tensor("x", "...", like="grad_out", doc="the input of the forward call"),
    ),
    outputs=(Output("grad_x", like="x"),),
    derive=lambda a, axes: {"N": a["x"].numel()},
    reference=reference,
    error=ErrorModel(
        magnitude=lambda grad_out, x: grad_out.abs() * slope_magnitude(x),
        amplified=lambda grad_out, x: grad_out.abs() * slope_amplified(x),
        flushes=True,
    ),
    exact=NoExact("the exponential is transcendental: only 0 and the infinities give the same bits everywhere"),
    cases=(
        _case("1000", tier="smoke"),
        _case("scalar"),
        _case("1"),
        _case("7x13"),
        _case("4099"),
        _case("3x5x7x9"),
        _case("33x33"),
        _case("0"),
        _case("3x0x2"),
        _case("2049", inputs="wide"),
        _case("2049", inputs="small"),
        _case("515", inputs="cancel"),
        _case("515", inputs="vast", dtypes=(torch.float32, torch.bfloat16)),
        _case("1x7x1", inputs="sparse"),
        _case("1048583", tier="full"),
        _case("70000x257", tier="full"),
    ),
    workloads=(_case("4096x1024"), _case("67108864")),
    cost=cost,
    gradient=NoGradient("a gradient itself: torch_ref differentiates it"),
)
