"""Elementwise newop."""

from __future__ import annotations

import torch

from kernelmux.registry.cases import Case, integers
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import Call, Composed, OpSpec, Output, Tensor


def reference(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x <= 0, 0.0, x)  # TODO(newop): slow and obvious; evaluated in float64


def magnitude(x: torch.Tensor) -> torch.Tensor:
    """The terms that are added, on absolute values: what roundings in fp32 are relative to."""
    # TODO(newop): of a * b + c it is (a * b).abs() + c.abs(). For exp(x) the model below also needs
    # amplified=lambda x: (x * torch.exp(x)).abs(), as it makes a rounding of x as large as x is.
    return x.abs()


def exact(case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, torch.Tensor] | None:
    """Inputs with which every order of evaluation gives the same bits."""
    # TODO(newop): or, below, exact=NoExact("why there are none")
    return {"x": integers(case.shapes["x"], dtype, rng, 15)}


def cost(call: Call) -> Cost:
    x = call.arguments["x"]
    return Cost(bytes=2 * x.numel() * x.element_size(), flops=x.numel())  # TODO(newop): per element


SPEC = OpSpec(
    name="newop",
    version=1,
    family="Element by element",
    summary="Elementwise newop.",  # TODO(newop): one sentence
    math="y = max(x, 0)",  # TODO(newop): the formula, for readers
    inputs=(Tensor("x", "...", doc="any shape and strides"),),
    outputs=(Output("y", like="x"),),
    derive=lambda a, axes: {"N": a["x"].numel()},
    reference=reference,
    error=ErrorModel(magnitude=magnitude, flushes=True),
    exact=exact,
    # TODO(newop): inputs="cancel", and others of kernelmux.registry.cases that are hard for the formula
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
        Case("x=1x7x1", inputs="sparse"),
        Case("x=1048583", tier="full"),
        Case("x=70000x257", tier="full"),
    ),
    workloads=(Case("x=4096x1024"), Case("x=67108864")),
    cost=cost,
    # TODO(newop): the derivative times g["y"], of values v["x"] and v["y"]; or NoGradient("why there is none")
    gradient=Composed(("x",), lambda kx, v, g: {"x": torch.where(v["x"] <= 0, 0.0, g["y"])}),
)
