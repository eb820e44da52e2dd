"""Product of the silu of one tensor and another: the gate of many feed-forward blocks."""

from __future__ import annotations

import torch

from kernelmux.registry.cases import Case
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.ops import silu
from kernelmux.registry.spec import Call, Gradient, NoExact, OpSpec, Output, Tensor


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return silu.reference(a) * b


def cost(call: Call) -> Cost:
    a = call.arguments["a"]
    return Cost(bytes=3 * a.numel() * a.element_size(), flops=6 * a.numel())


def _case(a: str, **options: object) -> Case:
    return Case(f"a={a} b={a}", **options)  # type: ignore[arg-type]


SPEC = OpSpec(
    name="swiglu",
    version=1,
    family="Element by element",
    summary="Product of silu(a) and b.",
    math="y = a * sigmoid(a) * b, computed in fp32, rounded once",
    sources=("Shazeer, GLU variants improve transformer, 2020",),
    inputs=(
        Tensor("a", "...", doc="any shape and strides; a and b may be the halves of one tensor"),
        Tensor("b", "...", like="a"),
    ),
    outputs=(Output("y", like="a"),),
    derive=lambda v, axes: {"N": v["a"].numel()},
    reference=reference,
    error=ErrorModel(
        magnitude=lambda a, b: silu.magnitude(a) * b.abs(),
        amplified=lambda a, b: silu.amplified(a) * b.abs(),
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
        _case("37x160"),
        _case("2049", inputs="wide"),
        _case("2049", inputs="small"),
        _case("515", inputs="cancel"),
        _case("515", inputs="vast", dtypes=(torch.float32, torch.bfloat16)),
        _case("1x7x1", inputs="sparse"),
        _case("1048583", tier="full"),
        _case("70000x257", tier="full"),
    ),
    workloads=(_case("4096x1024"), _case("16384x14336")),
    cost=cost,
    gradient=Gradient("swiglu_backward", wrt=("a", "b")),
)
