"""Root-mean-square normalisation of the last axis, with a weight per column."""

from __future__ import annotations

from dataclasses import replace

import torch

from kernelmux.registry.cases import Case
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import BatchInvariant, Call, Gradient, OpSpec, Output, Scalar, SpecialValues, Tensor


def reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def exact(case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, torch.Tensor] | None:
    """Rows of +-2^k of a length 2^m: the mean square is exactly 4^k, and eps vanishes beside it in fp32 for k = 12."""
    shape = case.shapes["x"]
    n = shape[-1]
    if 0 in shape or n & (n - 1) or case.scalars.get("eps", 0.0) > 1e-5:
        return None
    sign = torch.randint(0, 2, shape, generator=rng) * 2.0 - 1
    weight = 2.0 ** torch.randint(-2, 3, (n,), generator=rng)
    return {"x": (sign * 2.0**12).to(dtype), "weight": weight.to(dtype)}


def cost(call: Call) -> Cost:
    x, weight = call.arguments["x"], call.arguments["weight"]
    return Cost(bytes=(2 * x.numel() + weight.numel()) * x.element_size(), flops=4 * x.numel())


EPS = Scalar(
    "eps",
    float,
    1e-6,
    range=(1e-20, 1.0),
    also=(0.0,),
    trials=(0.0, 1e-20, 1e-12, 1e-5, 1e-3, 0.1, 1.0),
    doc="added to the mean square, 0 or from 1e-20 on; if it is 0, a row of zeros is 0 / 0 = NaN, and a mean below 2^-126"
    " is undefined",
)
EPS_BACKWARD = replace(
    EPS,
    doc="as in the forward call; if it is 0, a row whose mean square is below 1e-20 is undefined, as r^3 may overflow",
)

SPEC = OpSpec(
    name="rms_norm",
    version=1,
    family="Rows",
    summary="Root-mean-square normalisation of the last axis.",
    math="y = x / sqrt(mean(x^2) + eps) * weight, computed in fp32, rounded once",
    sources=("Zhang and Sennrich, Root mean square layer normalization, 2019",),
    inputs=(
        Tensor("x", "... N", doc="one vector, or a matrix of rows of any rank"),
        Tensor("weight", "N", like="x"),
        EPS,
    ),
    outputs=(Output("y", like="x"),),
    reference=reference,
    error=ErrorModel(
        magnitude=lambda x, w, eps: reference(x, w, eps).abs(), terms=lambda axes: axes["N"], flushes=True
    ),
    exact=exact,
    special=SpecialValues(undefined={"largest": "its square overflows fp32, in which the mean is defined"}),
    cases=(
        Case("x=4x128 weight=128", tier="smoke"),
        Case("x=17 weight=17"),
        Case("x=4096 weight=4096"),
        Case("x=1x1 weight=1"),
        Case("x=37x1000 weight=1000"),
        Case("x=3x5x65 weight=65 eps=1e-5"),
        Case("x=5x1025 weight=1025"),
        Case("x=2x8191 weight=8191"),
        Case("x=2x4096 weight=4096"),
        Case("x=1x16392 weight=16392"),  # a part of the row is held, where there is a vector beside it
        Case("x=0x16 weight=16"),
        Case("x=3x0 weight=0"),
        Case("x=9x515 weight=515", inputs="offset"),
        Case("x=9x515 weight=515", inputs="wide"),
        Case("x=9x515 weight=515", inputs="sparse"),
        Case("x=9x515 weight=515", inputs="small"),
        Case("x=33x33 weight=33"),
        Case("x=1x7x1 weight=1"),
        Case("x=4x65 weight=65 eps=0.0"),
        Case("x=4x65 weight=65 eps=1.0"),
        Case("x=4x130 weight=130 eps=1e-3", inputs="small"),
        Case("x=3x515 weight=515", inputs="vast", dtypes=(torch.float32, torch.bfloat16)),
        Case("x=7x33 weight=33", inputs="gaps"),
        Case("x=7x33 weight=33 eps=0.0", inputs="gaps"),
        Case("x=70000x33 weight=33", tier="full"),
        Case("x=128x65536 weight=65536", tier="full"),
        Case("x=4x262147 weight=262147", tier="full"),
        Case("x=4096x8192 weight=8192", tier="full"),
    ),
    workloads=(
        Case("x=4096x1024 weight=1024"),
        Case("x=16384x8192 weight=8192"),
        Case("x=32768x16384 weight=16384"),
        Case("x=8192x5120 weight=5120", dtypes=(torch.bfloat16,)),
        Case("x=2048x18432 weight=18432", dtypes=(torch.bfloat16,)),
    ),
    cost=cost,
    gradient=Gradient("rms_norm_backward", wrt=("x", "weight")),
    properties=(BatchInvariant(),),
)
