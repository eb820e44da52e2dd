"""Hard swish: x where x is large, 0 where it is small, a parabola between."""

from __future__ import annotations

import torch

from kernelmux.registry.cases import Case, integers
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import Call, Gradient, OpSpec, Output, SpecialValues, Tensor


def reference(x: torch.Tensor) -> torch.Tensor:
    return x * ((x + 3).clamp(0, 6) / 6)


def exact(case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Multiples of 3, where the factor is 0, 1/2 or 1."""
    return {"x": 3 * integers(case.shapes["x"], dtype, rng, 6)}


def cost(call: Call) -> Cost:
    x = call.arguments["x"]
    return Cost(bytes=2 * x.nbytes, flops=5 * x.numel())


SPEC = OpSpec(
    name="hardswish",
    version=1,
    summary="Hard swish.",
    math="y = x * min(max(x + 3, 0), 6) / 6",
    sources=("Howard et al., Searching for MobileNetV3, 2019",),
    inputs=(Tensor("x", "...", breakpoints=(-3.0, 3.0), doc="any shape and strides"),),
    outputs=(Output("y", like="x"),),
    derive=lambda a, axes: {"N": a["x"].numel()},
    reference=reference,
    error=ErrorModel(magnitude=lambda x: reference(x).abs(), flushes=True),  # each step rounds once, relative to itself
    exact=exact,
    special=SpecialValues(undefined={"largest": "6 x, on the way in torch, is beyond fp32"}),
    cases=(Case("x=1000", tier="smoke"), Case("x=scalar"), Case("x=4x5x6"), Case("x=4099"), Case("x=0")),
    workloads=(Case("x=4096x1024"), Case("x=67108864")),
    cost=cost,
    gradient=Gradient("hardswish_backward", wrt=("x",)),
)
