"""Product of two matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kernelmux.registry.cases import Case, exact_range, integers
from kernelmux.registry.cost import Cost
from kernelmux.registry.dtypes import FLOATS
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import Call, Composed, OpSpec, Output, Scalar, SpecialValues, Tensor


def reference(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return torch.einsum("mk,kn->mn", a, b)


def magnitude(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return reference(a.abs(), b.abs(), precision)


def exact(case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, torch.Tensor] | None:
    """Integers whose products sum exactly in fp32, to numbers of the dtype; tf32 holds them too."""
    (m, k), (_, n) = case.shapes["a"], case.shapes["b"]
    largest = min(exact_range(k, dtype, products=True), 512)
    if not largest:
        return None
    return {"a": integers((m, k), dtype, rng, largest), "b": integers((k, n), dtype, rng, largest)}


def products(kx: Any, values: Mapping[str, Any], grads: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Products with transposed views, in the same precision."""
    g, precision = grads["c"], values["precision"]
    return {"a": kx.matmul(g, values["b"].mT, precision), "b": kx.matmul(values["a"].mT, g, precision)}


def cost(call: Call) -> Cost:
    m, n, k = (call.axes[axis] for axis in "MNK")
    plain = call.dtype == torch.float32 and call.arguments["precision"] == "ieee"
    size = call.arguments["a"].element_size()
    return Cost(bytes=(m * k + k * n + m * n) * size, flops=2 * m * n * k, unit="fma" if plain else "tensor")


FP32 = (torch.float32,)
HALVES = (torch.float16, torch.bfloat16)
PRECISION = Scalar(
    "precision", str, "ieee", choices=("ieee", "tf32"), trials=("tf32",),
    doc='for fp32 only: "tf32" keeps 11 bits of the operands',
)  # fmt: skip

SPEC = OpSpec(
    name="matmul",
    version=1,
    summary="Matrix product; transposed views of either operand are read in place.",
    math="c = a @ b, accumulated in fp32, rounded once",
    inputs=(
        Tensor("a", "M K", dtypes=FLOATS),
        Tensor("b", "K N", like="a"),
        PRECISION,
    ),
    outputs=(Output("c", like="a", dims="M N"),),
    reference=reference,
    arithmetics=("fp32", "fp32_sequential", "mma"),
    error=ErrorModel(magnitude=magnitude, terms=lambda axes: axes["K"]),
    exact=exact,
    special=SpecialValues(undefined={"largest fp32": "rounded to tf32 it is infinite"}),
    cases=(
        Case("a=64x32 b=32x48", tier="smoke"),
        Case("a=1x1 b=1x1"),
        Case("a=1x65 b=65x1"),
        Case("a=33x17 b=17x45"),
        Case("a=64x63 b=63x64"),
        Case("a=48x48 b=48x48"),
        Case("a=24x33 b=33x24", inputs="faint", dtypes=FP32),
        Case("a=24x72 b=72x24", inputs="faint", dtypes=FP32),
        Case("a=130x18 b=18x3"),
        Case("a=17x40 b=40x24", inputs="vast", dtypes=(torch.float32, torch.bfloat16)),
        Case("a=130x70 b=70x100"),
        Case("a=128x128 b=128x136"),
        Case("a=16x520 b=520x24"),
        Case("a=130x72 b=72x40 precision=tf32", dtypes=FP32),
        Case("a=65x33 b=33x31 precision=tf32", dtypes=FP32),
        Case("a=0x8 b=8x8"),
        Case("a=8x8 b=8x0"),
        Case("a=8x0 b=0x24"),
        Case("a=48x264 b=264x40", inputs="positive"),
        Case("a=48x264 b=264x40", inputs="wide", dtypes=FP32),
        Case("a=48x264 b=264x40", inputs="cancel"),
        Case("a=513x1025 b=1025x257", tier="full"),
        Case("a=1024x4096 b=4096x512", inputs="positive", tier="full"),
        Case("a=1024x1024 b=1024x1024 precision=tf32", dtypes=FP32, tier="full"),
        Case("a=16x16384 b=16384x136", tier="full"),
        Case("a=4096x64 b=64x4096", tier="full"),
        Case("a=70000x33 b=33x65", tier="full"),
    ),
    workloads=(
        Case("a=4096x4096 b=4096x4096"),
        Case("a=8192x8192 b=8192x8192", dtypes=HALVES),
        Case("a=4096x4096 b=4096x4096 precision=tf32", dtypes=FP32),
        Case("a=16x4096 b=4096x14336", dtypes=HALVES),
    ),
    cost=cost,
    gradient=Composed(("a", "b"), products),
)
