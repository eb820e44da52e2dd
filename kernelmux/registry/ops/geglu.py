"""Product of the gelu of one tensor and another."""

from __future__ import annotations

from dataclasses import replace

import torch

from kernelmux.registry.cases import Case
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.ops import gelu, gelu_backward
from kernelmux.registry.spec import Call, Gradient, NoExact, OpSpec, Output, Tensor


def reference(a: torch.Tensor, b: torch.Tensor, approximate: str) -> torch.Tensor:
    return gelu.reference(a, approximate) * b


def cost(call: Call) -> Cost:
    a = call.arguments["a"]
    return Cost(bytes=3 * a.numel() * a.element_size(), flops=13 * a.numel())


# Times 13 * 2^-24, the shortest accumulation, a little above 2^-126: gelu(a) below that may be 0 when b multiplies it.
UNDERFLOW = 2.0**-105
APPROXIMATE = replace(gelu_backward.APPROXIMATE, default="tanh", trials=("none",), doc="which of the two forms of gelu")


def _case(a: str, more: str = "", **options: object) -> Case:
    return Case(f"a={a} b={a} {more}".strip(), **options)  # type: ignore[arg-type]


SPEC = OpSpec(
    name="geglu",
    version=1,
    family="Element by element",
    summary="Product of gelu(a) and b.",
    math="y = gelu(a, approximate) * b, computed in fp32, rounded once",
    sources=("Shazeer, GLU variants improve transformer, 2020",),
    inputs=(
        Tensor("a", "...", doc="any shape and strides; a and b may be the halves of one tensor"),
        Tensor("b", "...", like="a"),
        APPROXIMATE,
    ),
    outputs=(Output("y", like="a"),),
    derive=lambda v, axes: {"N": v["a"].numel()},
    reference=reference,
    # As in gelu: 1 + erf cancels for negative a, so that the error is one of a * b and not of the product.
    error=ErrorModel(magnitude=lambda a, b, approximate: (a.abs() + UNDERFLOW) * b.abs(), flushes=True),
    exact=NoExact("erf and tanh are transcendental: only 0 and the infinities give the same bits everywhere"),
    cases=(
        _case("1000", tier="smoke"),
        _case("scalar"),
        _case("1"),
        _case("7x13", "approximate=none"),
        _case("4099"),
        _case("4099", "approximate=none"),
        _case("3x5x7x9"),
        _case("33x33"),
        _case("0"),
        _case("3x0x2", "approximate=none"),
        _case("37x160"),
        _case("2049", inputs="wide"),
        _case("2049", "approximate=none", inputs="wide"),
        _case("2049", inputs="small"),
        _case("515", inputs="cancel"),
        _case("515", "approximate=none", inputs="cancel"),
        _case("515", inputs="vast", dtypes=(torch.float32, torch.bfloat16)),
        _case("1x7x1", inputs="sparse"),
        _case("1048583", tier="full"),
        _case("70000x257", "approximate=none", tier="full"),
    ),
    workloads=(_case("4096x1024"), _case("16384x14336"), _case("16384x14336", "approximate=none")),
    cost=cost,
    gradient=Gradient("geglu_backward", wrt=("a", "b")),
)
