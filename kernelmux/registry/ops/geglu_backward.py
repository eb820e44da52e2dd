"""Gradients of geglu with respect to both of its inputs."""

from __future__ import annotations

from dataclasses import replace

import torch

from kernelmux.registry.cases import Case
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.ops import geglu, gelu, gelu_backward
from kernelmux.registry.spec import Call, NoExact, NoGradient, OpSpec, Output, SpecialValues, Tensor

Tensors = tuple[torch.Tensor, torch.Tensor]


def reference(grad_out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, approximate: str) -> Tensors:
    """The chain rule over a product: the derivative of gelu is float64 autograd of its reference."""
    return grad_out * b * gelu_backward.derivative(a, approximate), grad_out * gelu.reference(a, approximate)


def cost(call: Call) -> Cost:
    a = call.arguments["a"]
    return Cost(bytes=5 * a.numel() * a.element_size(), flops=22 * a.numel())


def _case(a: str, more: str = "", **options: object) -> Case:
    return Case(f"grad_out={a} a={a} b={a} {more}".strip(), **options)  # type: ignore[arg-type]


OVERFLOW = "of three factors, two may overflow fp32 together where the product of all does not"

SPEC = OpSpec(
    name="geglu_backward",
    version=1,
    family="Element by element",
    summary="Gradients of geglu.",
    math="grad_a = grad_out * b * gelu'(a, approximate); grad_b = grad_out * gelu(a, approximate)",
    sources=("Shazeer, GLU variants improve transformer, 2020",),
    inputs=(
        Tensor("grad_out", "...", doc="gradient of the output of geglu"),
        Tensor("a", "...", like="grad_out", doc="as in the forward call"),
        Tensor("b", "...", like="grad_out", doc="as in the forward call"),
        replace(geglu.APPROXIMATE, doc="as in the forward call"),
    ),
    outputs=(Output("grad_a", like="a"), Output("grad_b", like="b")),
    derive=lambda v, axes: {"N": v["a"].numel()},
    reference=reference,
    error=(
        ErrorModel(
            magnitude=lambda grad_out, a, b, approximate: (grad_out * b).abs(),
            amplified=lambda grad_out, a, b, approximate: (
                (grad_out * b).abs() * gelu_backward.slope_amplified(a, approximate)
            ),
            flushes=True,
        ),
        ErrorModel(
            magnitude=lambda grad_out, a, b, approximate: grad_out.abs() * (a.abs() + geglu.UNDERFLOW), flushes=True
        ),
    ),
    exact=NoExact("erf and tanh are transcendental: only 0 and the infinities give the same bits everywhere"),
    special=SpecialValues(undefined={"largest fp32": OVERFLOW, "largest bf16": OVERFLOW}),
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
    gradient=NoGradient("a gradient itself: torch_ref differentiates it"),
)
