"""Product of a weight with few vectors, as a layer does when it decodes."""

from __future__ import annotations

from typing import Any

import torch

from kernelmux.registry.cases import Case, exact_range, integers
from kernelmux.registry.cost import Cost
from kernelmux.registry.dtypes import FLOATS
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import BatchInvariant, Call, Constraint, NoGradient, OpSpec, Output, SpecialValues, Tensor

MOST = 16  # vectors


def reference(weight: torch.Tensor, x: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    sums = torch.einsum("nk,bk->bn", weight.to(x), x)
    return sums if scale is None else sums * scale


def magnitude(weight: torch.Tensor, x: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    return reference(weight.to(x).abs(), x.abs(), None if scale is None else scale.abs())


def exact(case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, torch.Tensor] | None:
    """Integers whose products sum exactly in fp32, to numbers of the result's dtype, and scales that are powers of two."""
    kinds, (n, k) = SPEC.dtypes_for(dtype, case.parsed[2]), case.shapes["weight"]
    largest = min(exact_range(k, kinds["x"], products=True), 127)
    if not largest:
        return None
    found = {name: integers(case.shapes[name], kinds[name], rng, largest) for name in ("weight", "x")}
    if "scale" in case.shapes:
        found["scale"] = torch.ldexp(torch.ones(n), -(torch.arange(n) % 3))
    return found


def cost(call: Call) -> Cost:
    (b, k), n = call.arguments["x"].shape, call.axes["N"]
    size, weight = call.arguments["x"].element_size(), call.arguments["weight"]
    scales = 0 if call.arguments["scale"] is None else 4 * n
    unit = "fma" if weight.dtype == torch.float32 else "tensor"
    return Cost(bytes=n * k * weight.element_size() + b * (k + n) * size + scales, flops=2 * b * n * k, unit=unit)


INT8, HALVES = (torch.int8,), (torch.float16, torch.bfloat16)


def _case(n: int, k: int, b: int, x: str = "", **options: Any) -> Case:
    """Of an int8 weight with scales if `x` says of which dtype the vectors are."""
    text = f"weight={n}x{k}:i8 x={b}x{k}:{x} scale={n}" if x else f"weight={n}x{k} x={b}x{k}"
    return Case(text, **{"dtypes": INT8 if x else FLOATS, **options})


SPEC = OpSpec(
    name="matvec",
    version=1,
    family="Products",
    summary="Product of a weight, which may be 8-bit integers with a scale per row, with up to 16 vectors.",
    math="y[b, n] = scale[n] * (sum over k of weight[n, k] * x[b, k]), accumulated in fp32, rounded once",
    inputs=(
        Tensor("weight", "N K", dtypes=(*FLOATS, torch.int8), doc="of the dtype of x, or int8"),
        Tensor("x", "B K"),
        Tensor("scale", "N", dtypes=(torch.float32,), optional=True, doc="of each row; 1 if it is left out"),
    ),
    outputs=(Output("y", like="x", dims="B N"),),
    formats=(
        *({"weight": dtype, "x": dtype} for dtype in FLOATS),
        *({"weight": torch.int8, "x": dtype} for dtype in (torch.bfloat16, torch.float16, torch.float32)),
    ),
    constraints=(
        Constraint(f"B <= {MOST}: more vectors are a product of matrices", lambda values: values["B"] <= MOST),
    ),
    reference=reference,
    arithmetics=("fp32", "mma_16"),
    error=ErrorModel(magnitude=magnitude, terms=lambda axes: axes["K"], flushes=True),
    exact=exact,
    special=SpecialValues(
        undefined={"largest": "sums in fp32 overflow on the way, even where the scale makes them small"}
    ),
    cases=(
        _case(64, 96, 3, tier="smoke"),
        _case(64, 96, 3, x="bf16", tier="smoke"),
        _case(1, 1, 1),
        _case(48, 48, 6),
        _case(33, 65, 2),
        _case(45, 200, 16),
        _case(33, 208, 11, dtypes=HALVES),
        Case("weight=45x64 x=2x64 scale=45"),
        _case(40, 1032, 9),
        _case(17, 72, 8, inputs="wide", dtypes=(torch.float32,)),
        _case(130, 48, 5, x="fp16"),
        _case(37, 77, 2, x="fp32"),
        _case(31, 4112, 1, x="bf16"),
        _case(16, 2064, 16, x="fp16"),
        _case(0, 8, 2),
        _case(8, 0, 3, x="bf16"),
        _case(24, 264, 4, inputs="positive"),
        _case(24, 264, 12, inputs="cancel"),
        _case(70, 515, 1, dtypes=HALVES),  # lines that begin at any multiple of 2, of 4 and of 8 bytes
        _case(70, 514, 3, dtypes=HALVES),
        _case(70, 516, 2, dtypes=HALVES),
        _case(1027, 4096, 7, tier="full"),
        _case(1027, 4097, 1, tier="full"),
        _case(70000, 64, 16, x="bf16", tier="full"),
        _case(24, 65536, 3, inputs="positive", tier="full"),
    ),
    workloads=(
        _case(4096, 4096, 1, dtypes=(torch.bfloat16,)),
        _case(14336, 4096, 1),
        _case(14336, 4096, 16, dtypes=HALVES),
        _case(4096, 14336, 4, dtypes=(torch.bfloat16,)),
        _case(14336, 4096, 1, x="bf16"),
        _case(14336, 4096, 16, x="bf16"),
    ),
    cost=cost,
    gradient=NoGradient("of a step of decoding, which nothing learns from; what learns has more rows and uses linear"),
    properties=(BatchInvariant(("B",)),),
)
