"""Product of two matrices of 8-bit integers."""

from __future__ import annotations

import torch

from kernelmux.registry.cases import Case, draw, exact_range, integers
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import Call, Constraint, NoGradient, OpSpec, Output, Tensor

MOST_TERMS = 2**17 - 1  # of 2^14 at most, whose sum is a number of 32 bits
Maybe = torch.Tensor | None


def reference(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    sums = torch.einsum("mk,kn->mn", a.to(torch.float64), b.to(torch.float64))
    if scale_a is None and scale_b is None:
        return sums.to(torch.int32)
    for scale in (scale_a, scale_b):
        sums = sums if scale is None else sums * scale
    return sums


def scaled(call: Call) -> bool:
    """Whether a scale is given, so that the result is floating."""
    return not all(call.arguments[name] is None for name in ("scale_a", "scale_b"))


def magnitude(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    scales = (None if scale is None else scale.abs() for scale in (scale_a, scale_b))
    return reference(a.to(torch.int64).abs(), b.to(torch.int64).abs(), *scales)


def exact(case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Any integers; with scales those whose sums bf16 holds, or ones if there are too many, and powers of two."""
    shapes = case.shapes
    scales = [name for name in ("scale_a", "scale_b") if name in shapes]
    if not scales:
        return {name: draw(shapes[name], dtype, rng) for name in ("a", "b")}
    largest = min(exact_range(shapes["a"][1], torch.bfloat16, products=True), 127)
    found = {name: integers(shapes[name], dtype, rng, max(largest, 1)) for name in ("a", "b")}
    if not largest:
        found["b"][128:] = 0
    for name in scales:
        found[name] = torch.ldexp(torch.ones(shapes[name]), -torch.randint(0, 3, shapes[name], generator=rng))
    return found


def cost(call: Call) -> Cost:
    m, n, k = (call.axes[axis] for axis in "MNK")
    scales = sum(4 * s.numel() for s in (call.arguments["scale_a"], call.arguments["scale_b"]) if s is not None)
    return Cost(bytes=m * k + k * n + m * n * (2 if scaled(call) else 4) + scales, flops=2 * m * n * k, unit="tensor")


INT8, SINGLE = (torch.int8,), (torch.float32,)

SPEC = OpSpec(
    name="int8_matmul",
    version=1,
    family="Products",
    summary="Product of two matrices of 8-bit integers, exact in 32 bits; with scales in bf16.",
    math="c = a @ b in int32; with a scale c = scale_a * (a @ b) * scale_b in bf16, 1 for one that is left out",
    inputs=(
        Tensor("a", "M K", dtypes=INT8),
        Tensor("b", "K N", dtypes=INT8, doc="fastest with K contiguous, as the view weight.t() has it"),
        Tensor("scale_a", "M 1 |", dtypes=SINGLE, optional=True, doc="of each row, or one for all"),
        Tensor("scale_b", "1 N |", dtypes=SINGLE, optional=True, doc="of each column, or one for all"),
    ),
    outputs=(Output("c", like="a", dims="M N", dtype=lambda call: torch.bfloat16 if scaled(call) else torch.int32),),
    constraints=(
        Constraint(f"K <= {MOST_TERMS}, so that sums are numbers of 32 bits", lambda v: v["K"] <= MOST_TERMS),
    ),
    reference=reference,
    arithmetics=("int32",),
    error=ErrorModel(magnitude=magnitude, terms=lambda axes: axes["K"], flushes=True),
    exact=exact,
    cases=(
        Case("a=64x64 b=64x48", tier="smoke"),
        Case("a=64x64 b=64x48 scale_a=64x1 scale_b=1x48", tier="smoke"),
        Case("a=1x1 b=1x1"),
        Case("a=33x17 b=17x45 scale_a=33x1"),
        Case("a=130x70 b=70x100"),
        Case("a=130x192 b=192x136 scale_a=scalar scale_b=1x136"),
        Case("a=70x416 b=416x72 scale_a=scalar scale_b=scalar"),
        Case("a=16x1040 b=1040x24 scale_b=1x24"),
        Case("a=0x8 b=8x8"),
        Case("a=8x0 b=0x24 scale_a=scalar"),
        Case("a=0x32 b=32x16.mT"),  # lines that the copy engine reads, none of them
        Case("a=513x1025 b=1025x257 scale_a=513x1 scale_b=1x257", tier="full"),
        Case("a=1024x4096 b=4096x512", tier="full"),
        Case("a=70000x33 b=33x65", tier="full"),
    ),
    workloads=(
        Case("a=8192x8192 b=8192x8192.mT"),
        Case("a=8192x8192 b=8192x8192.mT scale_a=8192x1 scale_b=1x8192"),
        Case("a=4096x4096 b=4096x4096.mT scale_a=4096x1 scale_b=1x4096"),
    ),
    cost=cost,
    gradient=NoGradient("integers have no derivative; what learns holds its weights in floats"),
)
