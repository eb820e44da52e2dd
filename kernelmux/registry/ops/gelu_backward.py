"""Gradient of gelu with respect to its input."""

from __future__ import annotations

import math

import torch

from kernelmux.registry.cases import Case
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.ops import gelu
from kernelmux.registry.spec import Call, NoExact, NoGradient, OpSpec, Output, Scalar, Tensor

FAR = 1000.0  # beyond it the derivative is 0 or 1 in float64
SATURATED = 5.5  # the tanh of the approximation is 1 in fp32 from here on
APPROXIMATE = Scalar(
    "approximate", str, "none", choices=("none", "tanh"), trials=("tanh",), doc="as in the forward call"
)


def derivative(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """float64 autograd of the forward reference, element by element; at the infinities its limits, 0 and 1."""
    with torch.inference_mode(False), torch.enable_grad():
        z = x.clamp(-FAR, FAR).detach().requires_grad_()
        (found,) = torch.autograd.grad(gelu.reference(z, approximate).sum(), z)
    return found


def reference(grad_out: torch.Tensor, x: torch.Tensor, approximate: str) -> torch.Tensor:
    return grad_out * derivative(x, approximate)


def slope_amplified(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """1 - tanh(u)^2 is a difference that x * du/dx / 2 multiplies, as long as tanh(u) is not 1; erf has no such term."""
    z = x.abs().clamp(max=SATURATED)
    return (0.0 if approximate == "none" else 0.5) * z * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * z * z)


def cost(call: Call) -> Cost:
    x = call.arguments["x"]
    return Cost(bytes=3 * x.numel() * x.element_size(), flops=18 * x.numel())


def _case(x: str, more: str = "", **options: object) -> Case:
    return Case(f"grad_out={x} x={x} {more}".strip(), **options)  # type: ignore[arg-type]


SPEC = OpSpec(
    name="gelu_backward",
    version=1,
    family="Element by element",
    summary="Gradient of gelu.",
    math='grad_x = grad_out * (Phi(x) + x * phi(x)), phi the density of the standard normal; approximate="tanh": '
    "grad_out * ((1 + t)/2 + x/2 * (1 - t^2) * sqrt(2/pi) * (1 + 0.134145 x^2)), t = tanh(sqrt(2/pi) * (x + 0.044715 x^3))",
    sources=("Hendrycks and Gimpel, Gaussian error linear units, 2016",),
    inputs=(
        Tensor("grad_out", "...", doc="gradient of the output of gelu"),
        Tensor("x", "...", like="grad_out", doc="the input of the forward call"),
        APPROXIMATE,
    ),
    outputs=(Output("grad_x", like="x"),),
    derive=lambda a, axes: {"N": a["x"].numel()},
    reference=reference,
    # As in gelu: 1 + erf cancels for negative x, so that the error is one of grad_out and not of the product.
    error=ErrorModel(
        magnitude=lambda grad_out, x, approximate: grad_out.abs(),
        amplified=lambda grad_out, x, approximate: grad_out.abs() * slope_amplified(x, approximate),
        flushes=True,
    ),
    exact=NoExact("erf and tanh are transcendental: only 0 and the infinities give the same bits everywhere"),
    cases=(
        _case("1000", tier="smoke"),
        _case("scalar"),
        _case("1"),
        _case("7x13", "approximate=tanh"),
        _case("4099"),
        _case("4099", "approximate=tanh"),
        _case("3x5x7x9"),
        _case("33x33"),
        _case("0"),
        _case("3x0x2", "approximate=tanh"),
        _case("2049", inputs="wide"),
        _case("2049", "approximate=tanh", inputs="wide"),
        _case("2049", inputs="small"),
        _case("515", inputs="cancel"),
        _case("515", "approximate=tanh", inputs="cancel"),
        _case("515", inputs="vast", dtypes=(torch.float32, torch.bfloat16)),
        _case("1x7x1", "approximate=tanh", inputs="sparse"),
        _case("1048583", tier="full"),
        _case("70000x257", "approximate=tanh", tier="full"),
    ),
    workloads=(_case("4096x1024"), _case("67108864"), _case("67108864", "approximate=tanh")),
    cost=cost,
    gradient=NoGradient("a gradient itself: torch_ref differentiates it"),
)
