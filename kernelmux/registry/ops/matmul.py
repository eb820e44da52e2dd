"""Product of two matrices, or of as many pairs of them as the leading axes say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from kernelmux.registry.cases import Case, exact_range, integers
from kernelmux.registry.cost import Cost
from kernelmux.registry.dtypes import FLOATS
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import Call, Composed, OpSpec, Output, Scalar, SpecialValues, Tensor
from kernelmux.registry.spec.gradient import Deferred


def reference(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return torch.einsum("...mk,...kn->...mn", a, b)


def magnitude(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return reference(a.abs(), b.abs(), precision)


def exact(case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, torch.Tensor] | None:
    """Integers whose products sum exactly in fp32, to numbers of the dtype; tf32 holds them too."""
    largest = min(exact_range(case.shapes["a"][-1], dtype, products=True), 512)
    return {name: integers(shape, dtype, rng, largest) for name, shape in case.shapes.items()} if largest else None


def products(kx: Any, values: Mapping[str, Any], grads: Mapping[str, torch.Tensor]) -> dict[str, Deferred]:
    """Products with transposed views, in the same precision; where all matrices of a share b, one over all their rows."""
    a, b, g, precision = values["a"], values["b"], grads["c"], values["precision"]

    def of_b() -> torch.Tensor:
        left, right = (t.flatten(0, -2) if a.dim() > b.dim() else t for t in (a, g))
        return kx.matmul(left.mT, right, precision)  # type: ignore[no-any-return]

    return {"a": lambda: kx.matmul(g, b.mT, precision), "b": of_b}


def counts(values: Mapping[str, Any], axes: Mapping[str, Any]) -> dict[str, int]:
    """batches: pairs of matrices. rows: of each left one, or of all of them together where they share the right one."""
    leading = math.prod(values["a"].shape[:-2])
    shared = values["b"].dim() == 2
    return {"batches": 1 if shared else leading, "rows": axes["M"] * (leading if shared else 1)}


def cost(call: Call) -> Cost:
    a, b, n = call.arguments["a"], call.arguments["b"], call.axes["N"]
    outputs = call.axes["batches"] * call.axes["rows"] * n
    plain = call.dtype == torch.float32 and call.arguments["precision"] == "ieee"
    size = (a.numel() + b.numel() + outputs) * a.element_size()
    return Cost(bytes=size, flops=2 * outputs * call.axes["K"], unit="fma" if plain else "tensor")


FP32 = (torch.float32,)
HALVES = (torch.float16, torch.bfloat16)
PRECISION = Scalar(
    "precision",
    str,
    "ieee",
    choices=("ieee", "tf32"),
    trials=("tf32",),
    doc='for fp32 only: "tf32" keeps 11 bits of the operands',
)

SPEC = OpSpec(
    name="matmul",
    version=2,
    family="Products",
    summary="Matrix product, of batches too; transposed and strided views of either operand are read in place.",
    math="c = a @ b for each pair of matrices, accumulated in fp32, rounded once",
    inputs=(
        Tensor("a", "... M K", dtypes=FLOATS, doc="one matrix or a batch of them; one that is expanded is read once"),
        Tensor("b", "... K N | K N", like="a", doc="one matrix for each of a, or one for all"),
        PRECISION,
    ),
    outputs=(Output("c", like="a", dims="... M N"),),
    derive=counts,
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
        Case("a=3x33x40 b=3x40x24"),
        Case("a=2x3x24x16 b=2x3x16x40"),
        Case("a=5x66x32 b=5x32x72"),
        Case("a=2x64x48 b=48x64"),
        Case("a=3x1x65 b=65x33"),
        Case("a=2x2x3x17x24 b=2x2x3x24x16"),
        Case("a=2x72x40 b=2x40x24 precision=tf32", dtypes=FP32),
        Case("a=0x8x8 b=0x8x8"),
        Case("a=2x8x0 b=2x0x24"),
        Case("a=2x16x1032 b=2x1032x24", dtypes=HALVES),  # K is split
        Case("a=66x1736 b=1736x16", dtypes=(torch.float16,)),  # few tiles and a long K, which blocks of a cluster share
        Case("a=78x768 b=768x16 precision=tf32", dtypes=FP32),
        Case("a=33x198 b=198x45", dtypes=(torch.bfloat16,)),  # odd lines of b, K in more stages than a ring has
        Case("a=264x24 b=24x8", dtypes=(torch.bfloat16,)),  # on one multiprocessor by the widest tile
        Case("a=130x264 b=264x24", dtypes=(torch.bfloat16,)),  # rows divided evenly among tiles of c^T
        Case("a=330x264 b=264x520", dtypes=(torch.bfloat16,)),  # and fetched by blocks of a cluster together
        Case("a=33x8 b=8x776", dtypes=(torch.float32, torch.bfloat16)),  # many tiles of few rows
        Case("a=3x24x16 b=16x200 precision=tf32", dtypes=FP32),
        Case("a=2x3x17x33 b=2x3x33x24.mT precision=tf32", dtypes=FP32),  # lines that the copy engine cannot read
        Case("a=1000x64x64 b=1000x64x64", tier="full"),
        Case("a=70000x3x5 b=70000x5x7", tier="full"),
        Case("a=7x513x257 b=7x257x130", tier="full"),
        Case("a=513x1025 b=1025x257", tier="full"),
        Case("a=1024x4096 b=4096x512", inputs="positive", tier="full"),
        Case("a=1024x1024 b=1024x1024 precision=tf32", dtypes=FP32, tier="full"),
        Case("a=16x16384 b=16384x136", tier="full"),
        Case("a=4096x64 b=64x4096", tier="full"),
        Case("a=70000x33 b=33x65", tier="full"),
        Case("a=528x4536 b=4536x304", dtypes=HALVES, tier="full"),  # rows in several tiles of c^T, whose K blocks share
        Case("a=520x264 b=264x1032", dtypes=HALVES, tier="full"),  # blocks of a cluster fetch rows and columns together
        Case("a=3304x6720 b=6720x160", dtypes=HALVES, tier="full"),  # all tiles are a last round, which blocks share
        Case("a=19400x2088 b=2088x40", dtypes=HALVES, tier="full"),  # a whole round, and a last one that blocks share
        Case("a=1024x8 b=8x4400", dtypes=HALVES, tier="full"),  # last columns by a box of their own
        Case("a=4480x72 b=72x400", dtypes=HALVES, tier="full"),  # even and odd rows in turn
        Case("a=128x2072 b=2072x24", dtypes=HALVES, tier="full"),  # lines at odd multiples of 16 bytes: by tiles of c^T
        Case("a=136x7664 b=7664x40", dtypes=HALVES, tier="full"),  # and by one of two widths
        Case("a=17280x2048 b=2048x64", dtypes=HALVES, tier="full"),
        Case("a=1800x664 b=664x421", dtypes=HALVES, tier="full"),  # lines of the result begin anywhere
        Case("a=516x16.mT b=16x512 precision=tf32", dtypes=FP32, tier="full"),
        Case("a=20000x479 b=479x43", dtypes=HALVES, tier="full"),  # lines of the result are copied too
        Case("a=24x772 b=772x38", dtypes=FP32),  # lines of a can be copied 16 bytes at a time, those of b 8
    ),
    workloads=(
        Case("a=4096x4096 b=4096x4096"),
        Case("a=8192x8192 b=8192x8192", dtypes=HALVES),
        Case("a=4096x4096 b=4096x4096 precision=tf32", dtypes=FP32),
        Case("a=16x4096 b=4096x14336", dtypes=HALVES),
        Case("a=1000x3000 b=3000x5000", dtypes=HALVES),
        Case("a=512x7168 b=7168x2048", dtypes=HALVES),
        Case("a=32x8192 b=8192x8192", dtypes=HALVES),
        Case("a=128x1024x128 b=128x128x1024", dtypes=HALVES),
        Case("a=8x2048x4096 b=8x4096x4096", dtypes=HALVES),
        Case("a=1000x64x64 b=1000x64x64", dtypes=HALVES),
    ),
    cost=cost,
    gradient=Composed(("a", "b"), products),
)
