"""Sum of an input and a residual, and its root-mean-square normalisation: what stands between two transformer blocks."""

from __future__ import annotations

import torch

from kernelmux.registry.cases import Case
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.ops import rms_norm
from kernelmux.registry.spec import BatchInvariant, Call, Gradient, NoExact, OpSpec, Output, SpecialValues, Tensor

Tensors = tuple[torch.Tensor, torch.Tensor]


def reference(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> Tensors:
    total = x + residual
    return rms_norm.reference(total, weight, eps), total


def magnitude(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return rms_norm.reference(x + residual, weight, eps).abs()


def rounded_total(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """What rounding the total moves y by: y is t * r * w; the rounding of t, and that of all t in r, which moves less."""
    return 2 * magnitude(x, residual, weight, eps)


def slope(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """How far y moves at most if every element of the total moves by 1: r * |w| * (1 + |t| * r)."""
    total = x + residual
    r = 1 / torch.sqrt((total * total).mean(-1, keepdim=True) + eps)
    return r * weight.abs() * (1 + total.abs() * r)


def cost(call: Call) -> Cost:
    x, weight = call.arguments["x"], call.arguments["weight"]
    return Cost(bytes=(4 * x.numel() + weight.numel()) * x.element_size(), flops=5 * x.numel())


def _case(x: str, more: str = "", **options: object) -> Case:
    return Case(f"x={x} residual={x} weight={x.split('x')[-1]} {more}".strip(), **options)  # type: ignore[arg-type]


SPEC = OpSpec(
    name="add_rms_norm",
    version=1,
    family="Rows",
    summary="Sum of an input and a residual, normalised by its root mean square.",
    math="total = x + residual, rounded to the dtype; y = rms_norm(total, weight, eps)",
    sources=("Zhang and Sennrich, Root mean square layer normalization, 2019",),
    inputs=(
        Tensor("x", "... N", doc="one vector, or a matrix of rows of any rank"),
        Tensor("residual", "... N", like="x"),
        Tensor("weight", "N", like="x"),
        rms_norm.EPS,
    ),
    outputs=(
        Output("y", like="x", doc="the normalised total; the sum may enter it before or after it is rounded"),
        Output("total", like="x", doc="x + residual: the residual of the next block"),
    ),
    reference=reference,
    error=(
        ErrorModel(
            magnitude=magnitude,
            terms=lambda axes: axes["N"],
            intermediate=rounded_total,
            sensitivity=slope,
            flushes=True,
        ),
        ErrorModel(magnitude=lambda x, *others: torch.zeros_like(x), flushes=True),
    ),
    exact=NoExact("the sum need not be rounded before it is normalised: two sound kernels may differ in the last bit"),
    special=SpecialValues(undefined={"largest": "the sum, or its square in fp32, overflows"}),
    cases=(
        _case("4x128", tier="smoke"),
        _case("17"),
        _case("1x1"),
        _case("37x1000"),
        _case("3x5x65", "eps=1e-5"),
        _case("2x4099"),
        _case("1x33001"),
        _case("0x16"),
        _case("3x0"),
        _case("33x33", "eps=1.0"),
        _case("9x515", inputs="offset"),
        _case("9x515", inputs="cancel"),
        _case("7x33", inputs="gaps"),
        _case("70000x33", tier="full"),
        _case("128x65536", tier="full"),
        _case("3x262147", tier="full"),
        _case("4096x8192", tier="full"),
    ),
    workloads=(_case("4096x1024"), _case("16384x8192"), _case("8192x5120")),
    cost=cost,
    gradient=Gradient("add_rms_norm_backward", wrt=("x", "weight"), saves=("total",), same={"residual": "x"}),
    properties=(BatchInvariant(),),
)
