"""The spec of the largest and of the smallest element over one axis or over all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from kernelmux.registry.cases import Case, integers
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import CHOSEN
from kernelmux.registry.ops.reduce_sum import derive, shape
from kernelmux.registry.spec import (
    Axis,
    Call,
    Composed,
    Constraint,
    OpSpec,
    Output,
    PermutationInvariant,
    Scalar,
    Tensor,
)


def exact(case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Integers that every dtype has, none of them zero, whose sign is not settled."""
    return {"x": integers(case.shapes["x"], dtype, rng, 100)}


def cost(call: Call) -> Cost:
    x = call.arguments["x"]
    results = torch.Size(shape(call)).numel()
    return Cost(bytes=(x.numel() + results) * x.element_size(), flops=x.numel())


SOMETHING = Constraint("at least one element to choose from, N >= 1", lambda values: values["N"] >= 1)
CASES = (
    Case("x=4x100 axis=-1", tier="smoke"),
    Case("x=1000", tier="smoke"),
    Case("x=scalar"),
    Case("x=37x1000 axis=-1"),
    Case("x=2x16387 axis=1 keepdim=True", inputs="ties", dtypes=(torch.bfloat16,)),
    Case("x=515x6 axis=0", inputs="ties"),
    Case("x=70x2 axis=1", dtypes=(torch.float32,)),
    Case("x=8200x8 axis=0", inputs="ties", dtypes=(torch.float32,)),
    Case("x=129x257"),
    Case("x=65537", inputs="ties", dtypes=(torch.float16,)),
    Case("x=1x7x1 axis=1 keepdim=True", dtypes=(torch.float32,)),
    Case("x=5x5x5 axis=1", inputs="ties", dtypes=(torch.float16,)),
    Case("x=0x3 axis=1"),
    Case("x=6x515 axis=1", inputs="masked", dtypes=(torch.bfloat16,)),
    Case("x=70x6 axis=0", inputs="tiny", dtypes=(torch.float32, torch.bfloat16)),
    Case("x=300x24 axis=1", inputs="ties", dtypes=(torch.bfloat16,)),
    Case("x=16500x129 axis=0", inputs="ties", dtypes=(torch.float32,)),
    Case("x=8192x257 axis=0", inputs="ties", dtypes=(torch.bfloat16,)),
    Case("x=3x9001 axis=1", inputs="ties", dtypes=(torch.bfloat16,)),
    Case("x=1000003", inputs="ties", tier="full"),
    Case("x=7x31x5 axis=1", tier="full"),
    Case("x=70000x33 axis=1", tier="full"),
    Case("x=3x262147 axis=1", inputs="ties", tier="full"),
    Case("x=262147x3 axis=0", inputs="ties", tier="full"),
    Case("x=4099x4099 axis=1", tier="full"),
)
WORKLOADS = (
    Case("x=8192x8192 axis=1"),
    Case("x=8192x8192 axis=0"),
    Case("x=8192x8192"),
    Case("x=4096x33000 axis=1"),
    Case("x=33000x4096 axis=0"),
)


def shared(kx: Any, values: Mapping[str, Any], grads: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Elements that are equal to the extremum share the gradient evenly, as those of torch.amax."""
    x, axis, y, g = (values["x"], values["axis"], values["y"], grads["y"])
    if axis is None:
        y, g = (t.reshape([1] * x.dim()) for t in (y, g))
    elif not values["keepdim"]:
        y, g = y.unsqueeze(axis), g.unsqueeze(axis)
    equal = (x == y).to(torch.promote_types(x.dtype, torch.float32))
    return {"x": (equal * (g / kx.reduce_sum(equal, axis, True))).to(x.dtype)}


def extremum(name: str, summary: str, math: str, reference: Callable[..., torch.Tensor]) -> OpSpec:
    """The spec of reduce_max or reduce_min; the reference is a function of the module that calls this."""
    return OpSpec(
        name=name,
        version=1,
        family="Reductions",
        summary=summary,
        math=math,
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
