"""Elementwise square."""

from __future__ import annotations

import torch

from kernelmux.registry.cases import Case, integers
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import Call, Composed, OpSpec, Output, Tensor


def reference(x: torch.Tensor) -> torch.Tensor:
    return x * x


def exact(case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Integers whose squares are numbers of every dtype."""
    return {"x": integers(case.shapes["x"], dtype, rng, 15)}


def cost(call: Call) -> Cost:
    x = call.arguments["x"]
    return Cost(bytes=2 * x.numel() * x.element_size(), flops=x.numel())


SPEC = OpSpec(
    name="square",
    version=1,
    family="Element by element",
    summary="Elementwise square.",
    math="y = x * x",
    inputs=(Tensor("x", "...", doc="any shape and strides"),),
    outputs=(Output("y", like="x"),),
    derive=lambda a, axes: {"N": a["x"].numel()},
    reference=reference,
    error=ErrorModel(magnitude=lambda x: torch.zeros_like(x), flushes=True),  # exact but for the one rounding
    exact=exact,
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
        Case("x=515", inputs="vast", dtypes=(torch.float32, torch.bfloat16)),
        Case("x=1x7x1", inputs="sparse"),
        Case("x=1048583", tier="full"),
        Case("x=70000x257", tier="full"),
    ),
    workloads=(Case("x=4096x1024"), Case("x=67108864")),
    cost=cost,
    gradient=Composed(("x",), lambda kx, v, g: {"x": 2 * v["x"] * g["y"]}),
)
