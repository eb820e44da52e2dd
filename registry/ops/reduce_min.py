"""Smallest element over one axis or over all of them."""

from __future__ import annotations

import torch

from kernelmux.registry.numerics import CHOSEN
from kernelmux.registry.ops.reduce_max import CASES, SOMETHING, WORKLOADS, cost, exact, shared
from kernelmux.registry.ops.reduce_max import reference as largest
from kernelmux.registry.ops.reduce_sum import derive, shape
from kernelmux.registry.spec import Axis, Composed, OpSpec, Output, PermutationInvariant, Scalar, Tensor


def reference(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    return -largest(-x, axis, keepdim)


SPEC = OpSpec(
    name="reduce_min",
    version=1,
    summary="Smallest element over one axis, or over all; NaN if there is one.",
    math="y = min of x over axis; of zeros of both signs either one",
    inputs=(
        Tensor("x", "..."),
        Axis("axis", of="x", default=None, optional=True, doc="None stands for all axes"),
        Scalar("keepdim", bool, False, trials=(True,), doc="keep the reduced axes with length 1"),
    ),
    outputs=(Output("y", like="x", dims=shape),),
    constraints=(SOMETHING,),
    derive=derive,
    reference=reference,
    error=CHOSEN,
    exact=exact,
    cases=CASES,
    workloads=WORKLOADS,
    cost=cost,
    gradient=Composed(("x",), shared),
    properties=(PermutationInvariant("x"),),
)
