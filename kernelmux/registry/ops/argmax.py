"""Where the largest element is, over one axis or over all of them."""

from __future__ import annotations

import torch

from kernelmux.registry.cases import Case, draw
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import EQUAL
from kernelmux.registry.ops._extremum import CASES, SOMETHING, WORKLOADS
from kernelmux.registry.ops.reduce_max import reference as largest
from kernelmux.registry.ops.reduce_sum import derive, shape
from kernelmux.registry.spec import Axis, Call, NoGradient, OpSpec, Output, Scalar, Tensor


def reference(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """The least of the indices at which the largest element, or NaN, stands."""
    line, along = (x.reshape(-1), 0) if axis is None else (x, axis)
    best = largest(line, along, True)
    indices = torch.arange(line.shape[along], device=x.device).view(
        [-1 if i == along else 1 for i in range(line.dim())]
    )
    found = torch.where((line == best) | (line.isnan() & best.isnan()), indices, line.shape[along]).amin(along, True)
    if axis is None:
        return found.view([1] * x.dim() if keepdim else [])
    return found if keepdim else found.squeeze(axis)


def exact(case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Anything at all: numbers are compared, not computed with."""
    return {"x": draw(case.shapes["x"], dtype, rng, "ties")}


def cost(call: Call) -> Cost:
    x = call.arguments["x"]
    return Cost(bytes=x.numel() * x.element_size() + 8 * torch.Size(shape(call)).numel(), flops=x.numel())


SPEC = OpSpec(
    name="argmax",
    version=1,
    family="Reductions",
    summary="Index of the largest element over one axis, or over all: the first of equals, the first NaN if there is one.",
    math="y = least i with x[i] = max of x over axis, or with x[i] NaN; 0 and -0 are equal",
    inputs=(
        Tensor("x", "..."),
        Axis("axis", of="x", default=None, optional=True, doc="None stands for all axes: an index into x.flatten()"),
        Scalar("keepdim", bool, False, trials=(True,), doc="keep the reduced axes with length 1"),
    ),
    outputs=(Output("index", like="x", dims=shape, dtype=torch.int64),),
    constraints=(SOMETHING,),
    derive=derive,
    reference=reference,
    error=EQUAL,
    exact=exact,
    cases=CASES,
    workloads=WORKLOADS,
    cost=cost,
    gradient=NoGradient("an index does not change with its input, but where it jumps"),
)
