"""Gaussian error linear unit, exact (erf) or by the tanh approximation."""

from __future__ import annotations

import math

import torch

from kernelmux.registry.cases import Case
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import Call, Gradient, NoExact, OpSpec, Output, Scalar, Tensor


def reference(x: torch.Tensor, approximate: str) -> torch.Tensor:
    if approximate == "tanh":
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    tail: torch.Tensor = torch.special.erfc(-x / math.sqrt(2))  # 1 + erf(z) = erfc(-z), without its cancellation
    return 0.5 * x * tail


def cost(call: Call) -> Cost:
    x = call.arguments["x"]
    return Cost(bytes=2 * x.numel() * x.element_size(), flops=12 * x.numel())


SPEC = OpSpec(
    name="gelu",
    version=1,
    family="Element by element",
    summary="Gaussian error linear unit.",
    math='y = x * Phi(x); approximate="tanh": y = x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))',
    sources=("Hendrycks and Gimpel, Gaussian error linear units, 2016",),
    inputs=(
        Tensor("x", "..."),
        Scalar("approximate", str, "none", choices=("none", "tanh"), trials=("tanh",), doc="which of the two formulas"),
    ),
    outputs=(Output("y", like="x"),),
    derive=lambda a, axes: {"N": a["x"].numel()},
    reference=reference,
    # 1 + erf cancels for negative x: the error is one of x, not y (budget on an H200: 1e6 with M = |y|, 0.98 with |x|)
    error=ErrorModel(magnitude=lambda x, approximate: x.abs(), flushes=True),
    exact=NoExact("erf and tanh are transcendental: only 0 and the infinities give the same bits everywhere"),
    cases=(
        Case("x=1000", tier="smoke"),
        Case("x=scalar"),
        Case("x=1"),
        Case("x=7x13 approximate=tanh"),
        Case("x=4099"),
        Case("x=4099 approximate=tanh"),
        Case("x=3x5x7x9"),
        Case("x=0"),
        Case("x=3x0x2 approximate=tanh"),
        Case("x=2049", inputs="wide"),
        Case("x=2049 approximate=tanh", inputs="wide"),
        Case("x=2049", inputs="small"),
        Case("x=515", inputs="cancel"),  # far on both sides: the result is x, or a zero with the sign of x
        Case("x=515 approximate=tanh", inputs="cancel"),
        Case("x=515", inputs="vast", dtypes=(torch.float32, torch.bfloat16)),
        Case("x=515", inputs="sparse"),
        Case("x=1x7x1 approximate=tanh", inputs="sparse"),
        Case("x=1048583", tier="full"),
        Case("x=1048583 approximate=tanh", tier="full"),
        Case("x=70000x257", tier="full"),
    ),
    workloads=(
        Case("x=4096x1024"),
        Case("x=67108864"),
        Case("x=67108864 approximate=tanh"),
    ),
    cost=cost,
    gradient=Gradient("gelu_backward", wrt=("x",)),
)
