"""Sum over one axis or over all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kernelmux.registry.cases import Case, exact_range, integers
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import Axis, Call, Composed, OpSpec, Output, Scalar, Tensor


def reference(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    axes = tuple(range(x.dim())) if axis is None else (axis,)
    return x.sum(axes, keepdim=keepdim) if axes else x.clone()


def magnitude(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    return reference(x.abs(), axis, keepdim)


def shape(call: Call) -> tuple[int, ...]:
    x, axis, keepdim = call.arguments.values()
    gone = range(x.dim()) if axis is None else (axis,)
    return tuple(1 if i in gone else n for i, n in enumerate(x.shape) if keepdim or i not in gone)


def derive(arguments: Mapping[str, Any], axes: Mapping[str, Any]) -> dict[str, int]:
    """N: how many terms each sum has."""
    x, axis = arguments["x"], arguments["axis"]
    return {"N": x.numel() if axis is None else x.shape[axis]}


def exact(case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, torch.Tensor] | None:
    """Integers so small that every partial sum is exact in fp32 and the result is a number of the dtype."""
    dims = case.shapes["x"]
    axis = case.scalars.get("axis")
    terms = int(torch.Size(dims).numel()) if axis is None else dims[axis]
    largest = exact_range(terms, dtype)
    return {"x": integers(dims, dtype, rng, min(largest, 1000))} if largest else None


def expanded(kx: Any, values: Mapping[str, Any], grads: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Every term has the gradient of its sum: a view without a copy."""
    g, axis = grads["y"], values["axis"]
    kept = g if values["keepdim"] or axis is None else g.unsqueeze(axis)
    return {"x": kept.expand(values["x"].shape)}


def cost(call: Call) -> Cost:
    x = call.arguments["x"]
    results = torch.Size(shape(call)).numel()
    return Cost(bytes=(x.numel() + results) * x.element_size(), flops=x.numel())


SPEC = OpSpec(
    name="reduce_sum",
    version=1,
    family="Reductions",
    summary="Sum over one axis, or over all; the sum over nothing is 0.",
    math="y = sum of x over axis, accumulated in fp32, rounded once",
    inputs=(
        Tensor("x", "..."),
        Axis("axis", of="x", default=None, optional=True, doc="None sums over all axes"),
        Scalar("keepdim", bool, False, trials=(True,), doc="keep the summed axes with length 1"),
    ),
    outputs=(Output("y", like="x", dims=shape),),
    derive=derive,
    reference=reference,
    arithmetics=("fp32", "fp32_sequential"),
    error=ErrorModel(magnitude=magnitude, terms=lambda axes: axes["N"]),
    exact=exact,
    cases=(
        Case("x=4x100 axis=-1", tier="smoke"),
        Case("x=1000", tier="smoke"),
        Case("x=scalar"),
        Case("x=1x1 axis=1"),
        Case("x=37x1000 axis=-1"),
        Case("x=5x4097 axis=1 keepdim=True"),
        Case("x=2x16387 axis=1", dtypes=(torch.float32, torch.bfloat16)),
        Case("x=64x130 axis=0"),
        Case("x=7x31x5 axis=1"),
        Case("x=2x3x4x65 axis=2 keepdim=True"),
        Case("x=129x257"),
        # All positive: the sum of as many normal numbers may happen to be near 0, and then shows nothing.
        Case("x=65537", inputs="positive"),
        Case("x=33x33 axis=0"),
        Case("x=5x5x5 axis=1"),
        Case("x=1x7x1 axis=1"),
        Case("x=1x7x1 axis=0 keepdim=True"),
        Case("x=5x1 axis=1"),
        Case("x=3x0 axis=1"),
        Case("x=0x3 axis=1"),
        Case("x=0"),
        Case("x=6x515 axis=1", inputs="offset"),
        Case("x=6x515 axis=1", inputs="cancel"),
        Case("x=515x6 axis=0", inputs="positive"),
        Case("x=6x70 axis=1", inputs="tiny", dtypes=(torch.float32, torch.bfloat16)),
        Case("x=70x6 axis=0", inputs="tiny", dtypes=(torch.float32, torch.bfloat16)),
        Case("x=3x515 axis=1", inputs="vast", dtypes=(torch.float32, torch.bfloat16)),
        Case("x=70", inputs="tiny", dtypes=(torch.float32, torch.bfloat16)),
        Case("x=300x24 axis=1", dtypes=(torch.bfloat16,)),
        Case("x=16500x129 axis=0", inputs="positive", dtypes=(torch.float32,)),
        Case("x=8192x257 axis=0", inputs="positive", dtypes=(torch.bfloat16,)),
        Case("x=3x9001 axis=1", inputs="positive", dtypes=(torch.bfloat16,)),
        Case("x=1000003", inputs="positive", dtypes=(torch.float32, torch.bfloat16), tier="full"),
        Case("x=70000x33 axis=1", tier="full"),
        Case("x=3x262147 axis=1", inputs="positive", tier="full"),
        Case("x=262147x3 axis=0", inputs="positive", tier="full"),
        Case("x=4099x4099 axis=1", inputs="positive", tier="full"),
        Case("x=4099x1031 axis=0", inputs="positive", tier="full"),
    ),
    workloads=(
        Case("x=8192x8192 axis=1"),
        Case("x=8192x8192 axis=0"),
        Case("x=8192x8192"),
        Case("x=4096x33000 axis=1", dtypes=(torch.bfloat16,)),
        Case("x=33000x4096 axis=0", dtypes=(torch.bfloat16,)),
    ),
    cost=cost,
    gradient=Composed(("x",), expanded),
)
