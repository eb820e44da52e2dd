"""Sigmoid linear unit, also called swish."""

from __future__ import annotations

import torch

from kernelmux.registry.cases import Case
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import Call, Gradient, NoExact, OpSpec, Output, Tensor

FAR = 1000.0  # beyond it sigmoid is 0 or 1 in float64
GONE = 104.0  # below minus this nothing of x * exp(x) is left in fp32
# Times 13 * 2^-24, the shortest accumulation, a little above 2^-126: what a sigmoid below that may be off by.
UNDERFLOW = 2.0**-105


def formula(x: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(x) for finite x."""
    return x * torch.sigmoid(x)


def reference(x: torch.Tensor) -> torch.Tensor:
    return formula(x.clamp(min=-FAR))  # 0 at -inf, the limit; the product would be inf * 0


def magnitude(x: torch.Tensor) -> torch.Tensor:
    """|y|, and what is lost where y, or far below zero exp(x), underflows; a product with y may make it large again."""
    return reference(x).abs() + UNDERFLOW * (1 + x.clamp(-GONE, 0).abs())


def amplified(x: torch.Tensor) -> torch.Tensor:
    """The exponential of x turns a relative error of x into |x| times that, of which 1 - sigmoid(x) arrives."""
    z = x.clamp(-FAR, FAR)
    return (reference(z) * z * torch.sigmoid(-z)).abs()


def cost(call: Call) -> Cost:
    x = call.arguments["x"]
    return Cost(bytes=2 * x.numel() * x.element_size(), flops=5 * x.numel())


SPEC = OpSpec(
    name="silu",
    version=1,
    family="Element by element",
    summary="Sigmoid linear unit.",
    math="y = x * sigmoid(x) = x / (1 + exp(-x)), 0 at -inf",
    sources=(
        "Elfwing, Uchibe and Doya, Sigmoid-weighted linear units for neural network function approximation, 2017",
    ),
    inputs=(Tensor("x", "...", doc="any shape and strides"),),
    outputs=(Output("y", like="x"),),
    derive=lambda a, axes: {"N": a["x"].numel()},
    reference=reference,
    error=ErrorModel(magnitude=magnitude, amplified=amplified, flushes=True),
    exact=NoExact("the exponential is transcendental: only 0 and the infinities give the same bits everywhere"),
    cases=(
        Case("x=1000", tier="smoke"),
        Case("x=scalar"),
        Case("x=1"),
        Case("x=7x13"),
        Case("x=4099"),
        Case("x=3x5x7x9"),
        Case("x=33x33"),
        Case("x=0"),
        Case("x=3x0x2"),
        Case("x=2049", inputs="wide"),
        Case("x=2049", inputs="small"),
        Case("x=515", inputs="cancel"),  # on both sides, to where exp(x) underflows
        Case("x=515", inputs="vast", dtypes=(torch.float32, torch.bfloat16)),
        Case("x=1x7x1", inputs="sparse"),
        Case("x=1048583", tier="full"),
        Case("x=70000x257", tier="full"),
    ),
    workloads=(Case("x=4096x1024"), Case("x=67108864")),
    cost=cost,
    gradient=Gradient("silu_backward", wrt=("x",)),
)
