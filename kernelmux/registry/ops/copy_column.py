"""One column of a matrix in pinned host memory, brought to the device."""

from __future__ import annotations

import torch

from kernelmux.registry.cases import Case, draw
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import Call, Constraint, NoGradient, OpSpec, Output, Scalar, Tensor


def reference(x: torch.Tensor, column: int) -> torch.Tensor:
    return torch.stack([row[column] for row in x]) if len(x) else x.new_empty(0)


def exact(case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, torch.Tensor] | None:
    """Anything at all: values are moved, not computed."""
    return {"x": draw(case.shapes["x"], dtype, rng, "wide")}


def cost(call: Call) -> Cost:
    """The bytes of the column itself; what a rung moves beyond that is its own waste."""
    x = call.arguments["x"]
    return Cost(bytes=2 * x.shape[0] * x.element_size(), flops=0, link="host")


SPEC = OpSpec(
    name="copy_column",
    version=1,
    family="Moving data",
    summary="Copies one column of a pinned host matrix to the device.",
    math="y[m] = x[m, column], bit for bit",
    inputs=(
        Tensor("x", "M N", host=True, doc="in pinned host memory; without a GPU any CPU tensor"),
        Scalar("column", int, trials=(0,), doc="0 <= column < N"),
    ),
    outputs=(Output("y", like="x", dims="M"),),
    constraints=(Constraint("0 <= column < N", lambda v: 0 <= v["column"] < v["N"]),),
    reference=reference,
    error=ErrorModel(magnitude=lambda x, column: torch.zeros_like(x[:, 0]), roundings=0),
    exact=exact,
    cases=(
        Case("x=16x8 column=3", tier="smoke"),
        Case("x=1x1 column=0"),
        Case("x=33x7 column=6"),
        Case("x=300x17 column=0"),
        Case("x=1025x3 column=2"),
        Case("x=0x4 column=1"),
        Case("x=9x9 column=4"),
        Case("x=64x9 column=5", inputs="wide"),
        Case("x=64x9 column=0", inputs="tiny"),
        Case("x=20011x5 column=4", tier="full"),
        Case("x=4096x4099 column=4098", tier="full"),
    ),
    workloads=(Case("x=4096x4096 column=17"), Case("x=65536x1024 column=17")),
    cost=cost,
    gradient=NoGradient("it copies from the memory of the host, where gradients are torch's"),
)
