"""Transpose of a matrix into contiguous memory."""

from __future__ import annotations

import torch

from kernelmux.registry.cases import Case, draw
from kernelmux.registry.cost import Cost
from kernelmux.registry.dtypes import FLOATS
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import Call, Composed, OpSpec, Output, Tensor


def reference(x: torch.Tensor) -> torch.Tensor:
    y = x.new_empty(x.shape[1], x.shape[0])
    for row in range(x.shape[0]):  # row m of x is column m of y
        y[:, row] = x[row]
    return y


def exact(case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, torch.Tensor] | None:
    """Anything at all: values are moved, not computed."""
    return {"x": draw(case.shapes["x"], dtype, rng, "wide")}


def cost(call: Call) -> Cost:
    x = call.arguments["x"]
    return Cost(bytes=2 * x.numel() * x.element_size(), flops=0)


SPEC = OpSpec(
    name="transpose",
    version=1,
    family="Moving data",
    summary="Transpose of a matrix, written out.",
    math="y[n, m] = x[m, n], bit for bit",
    sources=("Ruetsch and Micikevicius, Optimizing matrix transpose in CUDA, 2009",),
    inputs=(Tensor("x", "M N", dtypes=(*FLOATS, torch.int8, torch.int32)),),
    outputs=(Output("y", like="x", dims="N M"),),
    reference=reference,
    error=ErrorModel(magnitude=lambda x: torch.zeros_like(x.t()), roundings=0),
    exact=exact,
    cases=(
        Case("x=64x96", tier="smoke"),
        Case("x=1x1"),
        Case("x=1x7"),
        Case("x=33x1"),
        Case("x=31x33"),
        Case("x=33x33"),
        Case("x=34x66", inputs="tiny"),
        Case("x=64x64"),
        Case("x=65x127"),
        Case("x=128x130"),
        Case("x=100x3"),
        Case("x=0x5"),
        Case("x=5x0"),
        Case("x=70x66", inputs="wide"),
        Case("x=67x80", dtypes=(torch.int8, torch.bfloat16)),
        Case("x=80x131", dtypes=(torch.int8, torch.bfloat16)),
        Case("x=67x131", dtypes=(torch.int8, torch.bfloat16)),
        Case("x=30x100", dtypes=(torch.float32,)),
        Case("x=67x8448", dtypes=(torch.float32,)),
        Case("x=68x8447", dtypes=(torch.float32,)),
        Case("x=1031x2053", tier="full"),
        Case("x=70000x33", tier="full"),
        Case("x=33x70000", tier="full"),
        Case("x=3x2097169", tier="full"),
        Case("x=4096x4096", tier="full"),
    ),
    workloads=(
        Case("x=8192x8192"),
        Case("x=4096x1024"),
        Case("x=8191x8193"),
        Case("x=5000x7000", dtypes=(torch.bfloat16,)),
    ),
    cost=cost,
    gradient=Composed(("x",), lambda kx, v, g: {"x": kx.transpose(g["y"])}),
)
