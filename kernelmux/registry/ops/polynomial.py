"""Polynomial of the third degree, element by element: flops per byte without more bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kernelmux.registry.cases import Case, integers
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import Call, Composed, OpSpec, Output, Scalar, Tensor

NAMES = ("a", "b", "c", "d")


def reference(x: torch.Tensor, a: float, b: float, c: float, d: float) -> torch.Tensor:
    return ((a * x + b) * x + c) * x + d


def magnitude(x: torch.Tensor, a: float, b: float, c: float, d: float) -> torch.Tensor:
    return reference(x.abs(), abs(a), abs(b), abs(c), abs(d))


def exact(case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, torch.Tensor] | None:
    """Integers up to 3 and coefficients that are halves up to 1: every step and the sum have at most 8 digits."""
    if any(abs(v) > 1 or v * 2 % 1 for v in (case.scalars.get(name, 1.0) for name in NAMES)):
        return None
    return {"x": integers(case.shapes["x"], dtype, rng, 3)}


def slope(kx: Any, values: Mapping[str, Any], grads: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The derivative is a polynomial itself: 3ax^2 + 2bx + c."""
    a, b, c = (values[name] for name in "abc")
    return {"x": kx.polynomial(values["x"], 0.0, 3 * a, 2 * b, c) * grads["y"]}


def cost(call: Call) -> Cost:
    x = call.arguments["x"]
    return Cost(bytes=2 * x.numel() * x.element_size(), flops=6 * x.numel())


def _coefficient(name: str, doc: str) -> Scalar:
    return Scalar(name, float, 1.0, trials=(0.0, -0.5, 1e-3, 1e5), doc=doc)


SPEC = OpSpec(
    name="polynomial",
    version=1,
    family="Element by element",
    summary="Polynomial of the third degree.",
    math="y = ((a x + b) x + c) x + d, in fp32, in which the coefficients are rounded first; rounded once",
    sources=("Knuth, The art of computer programming, volume 2, section 4.6.4",),
    inputs=(
        Tensor("x", "...", doc="any shape and strides"),
        _coefficient("a", "of x^3; as all coefficients a number that fp32 holds, of which each call may have others"),
        _coefficient("b", "of x^2"),
        _coefficient("c", "of x"),
        _coefficient("d", "the constant"),
    ),
    outputs=(Output("y", like="x"),),
    derive=lambda a, axes: {"N": a["x"].numel()},
    reference=reference,
    error=ErrorModel(magnitude=magnitude, flushes=True),
    exact=exact,
    cases=(
        Case("x=1000 a=0.5 b=-1.0 c=1.0 d=0.5", tier="smoke"),
        Case("x=scalar a=0.5 b=1.0 c=-0.5 d=1.0"),
        Case("x=1 a=1.5 b=0.25 c=-0.3 d=0.7"),
        Case("x=7x13"),
        Case("x=4099 a=-0.3 b=1.7 c=0.0 d=-2.5"),
        Case("x=3x5x7x9 a=0.0 b=0.5 c=-1.0 d=0.0"),
        Case("x=33x33 a=0.5 b=-1.0 c=0.3 d=2.0"),
        Case("x=0"),
        Case("x=3x0x2"),
        Case("x=2049 a=0.1 b=0.2 c=0.3 d=0.4", inputs="wide"),
        Case("x=2049 a=0.1 b=0.2 c=0.3 d=0.4", inputs="small"),
        Case("x=515 a=1.0 b=-3.0 c=3.0 d=-1.0", inputs="uniform"),  # (x - 1)^3, which cancels at 1
        Case("x=515 a=0.0 b=0.0 c=1.25 d=0.5", inputs="vast", dtypes=(torch.float32, torch.bfloat16)),
        Case("x=1x7x1 a=2.0 b=3.0 c=4.0 d=5.0", inputs="sparse"),
        Case("x=1048583 a=0.5 b=-1.0 c=1.0 d=0.5", tier="full"),
        Case("x=70000x257 a=0.5 b=-1.0 c=1.0 d=0.5", tier="full"),
    ),
    workloads=(
        Case("x=4096x1024 a=0.5 b=-1.0 c=1.0 d=0.5"),
        Case("x=67108864 a=0.5 b=-1.0 c=1.0 d=0.5"),
    ),
    cost=cost,
    gradient=Composed(("x",), slope),
)
