"""Elementwise sum of two tensors of one shape."""

from __future__ import annotations

import torch

from kernelmux.registry.cases import Case, integers
from kernelmux.registry.cost import Cost
from kernelmux.registry.dtypes import UNIT
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import Call, Composed, OpSpec, Output, Tensor


def reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def exact(case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, torch.Tensor] | None:
    """Integers whose sums are numbers of the dtype."""
    largest = int(0.5 / UNIT[dtype])
    shape = case.shapes["x"]
    return {name: integers(shape, dtype, rng, largest) for name in ("x", "y")}


def cost(call: Call) -> Cost:
    x = call.arguments["x"]
    return Cost(bytes=3 * x.numel() * x.element_size(), flops=x.numel())


SPEC = OpSpec(
    name="add",
    version=1,
    family="Element by element",
    summary="Elementwise sum.",
    math="z = x + y",
    inputs=(
        Tensor("x", "...", doc="any shape and strides; expand() gives broadcasting without a copy"),
        Tensor("y", "...", like="x"),
    ),
    outputs=(Output("z", like="x"),),
    derive=lambda a, axes: {"N": a["x"].numel()},
    reference=reference,
    error=ErrorModel(magnitude=lambda x, y: torch.zeros_like(x)),  # exact but for the one rounding
    exact=exact,
    cases=(
        Case("x=1000 y=1000", tier="smoke"),
        Case("x=scalar y=scalar"),
        Case("x=1 y=1"),
        Case("x=7x13 y=7x13"),
        Case("x=4x5x6x7 y=4x5x6x7"),
        Case("x=4099 y=4099"),
        Case("x=0 y=0"),
        Case("x=3x0x2 y=3x0x2"),
        Case("x=1x7x1 y=1x7x1"),
        Case("x=33x33 y=33x33"),
        Case("x=515 y=515", inputs="sparse"),
        Case("x=515 y=515", inputs="tiny", dtypes=(torch.float32, torch.bfloat16)),
        Case("x=515 y=515", inputs="vast", dtypes=(torch.float32, torch.bfloat16)),
        Case("x=2049 y=2049", inputs="cancel"),
        Case("x=2049 y=2049", inputs="wide"),
        Case("x=1048583 y=1048583", tier="full"),
        Case("x=70000x257 y=70000x257", tier="full"),
    ),
    workloads=(
        Case("x=4096x1024 y=4096x1024"),
        Case("x=67108864 y=67108864"),
    ),
    cost=cost,
    gradient=Composed(("x", "y"), lambda kx, v, g: {"x": g["z"], "y": g["z"]}),
)
