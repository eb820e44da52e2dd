"""Product of two matrices of 8-bit floats with scales."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from kernelmux.registry import dtypes
from kernelmux.registry.cases import Case, exact_range, integers
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import Call, Constraint, NoGradient, OpSpec, Output, Scalar, SpecialValues, Tensor

BLOCK = 128  # elements that share a scale, along K and along N
ACCUMULATION = (
    '"full" goes on in fp32 after every 128 of K, "fast" uses the accumulator of the tensor core alone, with some 14 bits; '
    "scales of blocks need the former"
)
EIGHT = (torch.float8_e4m3fn, torch.float8_e5m2)


def spread(scale: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """A scale for every element of a matrix: from one, from one per line, or from those of blocks."""
    for axis, length in enumerate((rows, columns)) if scale.dim() else ():
        if scale.shape[axis] not in (1, length):
            scale = scale.repeat_interleave(BLOCK, axis).narrow(axis, 0, length)
    return scale


def reference(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, out_dtype: str, accumulation: str
) -> torch.Tensor:
    return torch.einsum("mk,kn->mn", a * spread(scale_a, *a.shape), b * spread(scale_b, *b.shape))


def magnitude(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, out_dtype: str, accumulation: str
) -> torch.Tensor:
    return reference(a.abs(), b.abs(), scale_a.abs(), scale_b.abs(), out_dtype, accumulation)


def exact(case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Small integers, most of them 0 where K is long, whose sums every accumulator holds; scales that are powers of two."""
    shapes, kinds = case.shapes, SPEC.dtypes_for(dtype, case.parsed[2])
    (m, k), out = shapes["a"], dtypes.parse(case.scalars.get("out_dtype", "bf16"))
    found = {name: integers(shapes[name], kinds[name], rng, 2) for name in ("a", "b")}
    kept = exact_range(4, out) and max(1, int(min(1 / dtypes.UNIT[out], 2.0**12) / 4))
    if kept < k:
        found["a"] = found["a"].float().mul(torch.rand(m, k, generator=rng).argsort(1) < kept).to(kinds["a"])
    for name in ("scale_a", "scale_b"):
        found[name] = torch.full(shapes[name], 2.0 ** -int(torch.randint(0, 3, (), generator=rng)))
    return found


def blocks(values: Mapping[str, Any]) -> bool:
    """Whether scales of blocks are as many as there are blocks."""
    wanted = {"G": values["K"], "H": values["N"]}
    return all(values[axis] == math.ceil(length / BLOCK) for axis, length in wanted.items() if axis in values)


def cost(call: Call) -> Cost:
    m, n, k = (call.axes[axis] for axis in "MNK")
    size = dtypes.parse(call.arguments["out_dtype"]).itemsize
    scales = 4 * (call.arguments["scale_a"].numel() + call.arguments["scale_b"].numel())
    return Cost(bytes=m * k + k * n + m * n * size + scales, flops=2 * m * n * k, unit="tensor")


def _case(m: int, k: int, n: int, scales: str, more: str = "", lies: str = "", **options: Any) -> Case:
    """scales: "one", "line" or "block" of both. lies: ".mT" where b is the view of a weight [N K]."""
    groups, columns = math.ceil(k / BLOCK), math.ceil(n / BLOCK)
    shapes = {"one": ("scalar",) * 2, "line": (f"{m}x1", f"1x{n}"), "block": (f"{m}x{groups}", f"{groups}x{columns}")}
    a, b = shapes[scales]
    return Case(f"a={m}x{k} b={k}x{n}{lies} scale_a={a} scale_b={b} {more}".strip(), **options)


def _layer(m: int, k: int, n: int, scales: str, more: str = "", **options: Any) -> Case:
    """A product with a weight as layers of models hold it, K contiguous."""
    return _case(m, k, n, scales, more, lies=".mT", **options)


SPEC = OpSpec(
    name="fp8_matmul",
    version=1,
    family="Products",
    summary="Product of two matrices of 8-bit floats, with a scale for all, for each line, or for each block of 128.",
    math="c = (a * scale_a) @ (b * scale_b), rounded once",
    sources=("DeepSeek-V3 technical report (2024), section 3.3: scales of blocks, sums promoted to fp32",),
    inputs=(
        Tensor("a", "M K", dtypes=EIGHT),
        Tensor("b", "K N", dtypes=EIGHT, doc="fastest with K contiguous, as the view weight.t() has it"),
        Tensor("scale_a", "| M 1 | M G", dtypes=(torch.float32,), doc="G = K / 128, rounded up"),
        Tensor("scale_b", "| 1 N | G H", dtypes=(torch.float32,), doc="H = N / 128, rounded up"),
        Scalar("out_dtype", str, "bf16", choices=("bf16", "fp16", "fp32"), trials=("fp32", "fp16")),
        Scalar("accumulation", str, "full", choices=("full", "fast"), trials=("fast",), doc=ACCUMULATION),
    ),
    outputs=(Output("c", like="a", dims="M N", dtype=lambda call: dtypes.parse(call.arguments["out_dtype"])),),
    formats=tuple({"a": a, "b": b} for a in EIGHT for b in EIGHT),
    constraints=(Constraint("scales of blocks: G = K / 128 and H = N / 128, rounded up", blocks),),
    reference=reference,
    arithmetics=("fp32", "fp32_sequential", "mma"),
    error=ErrorModel(magnitude=magnitude, terms=lambda axes: axes["K"], flushes=True),
    exact=exact,
    special=SpecialValues(
        undefined={"inf": "an infinite scale makes infinities of terms of both signs, or of their sum"}
    ),
    cases=(
        _case(64, 64, 48, "one", tier="smoke"),
        _case(64, 272, 144, "block", tier="smoke"),
        _case(1, 1, 1, "one"),
        Case("a=33x17 b=17x45:e5m2 scale_a=33x1 scale_b=scalar"),  # no access of 16 bytes; kinds that differ
        _case(130, 192, 136, "line", "accumulation=fast"),  # two tiles and half a stage, each way
        _case(66, 160, 144, "line", "accumulation=fast"),  # lines that the copy engine reads
        _case(70, 416, 72, "block", "out_dtype=fp16"),
        _case(16, 1040, 24, "one", "out_dtype=fp32", inputs="positive"),  # a sum that is never promoted is off by more
        _case(40, 133, 130, "block", inputs="positive"),  # a last block of five, and of two columns
        _layer(66, 192, 136, "line", "out_dtype=fp32", inputs="scattered"),
        _layer(130, 192, 136, "line", "accumulation=fast", inputs="scattered"),
        _layer(64, 64, 200, "line", inputs="scattered"),  # by the widest tile where one multiprocessor has all
        _case(0, 8, 8, "line"),
        _case(8, 0, 24, "one"),
        _layer(0, 32, 16, "line"),  # lines that the copy engine reads, none of them
        _case(513, 1025, 257, "block", tier="full"),
        _case(1024, 4096, 512, "line", inputs="positive", tier="full"),
        _layer(1030, 160, 1040, "line", "out_dtype=fp32", inputs="scattered", tier="full"),
        _layer(1030, 160, 1040, "line", "accumulation=fast", inputs="scattered", tier="full"),
    ),
    workloads=(
        _layer(8192, 8192, 8192, "one"),
        _layer(8192, 8192, 8192, "one", "accumulation=fast"),
        _layer(8192, 8192, 8192, "line"),
        _layer(4096, 7168, 4096, "block"),
        _layer(4096, 4096, 4096, "one"),
        _layer(128, 4096, 14336, "line"),
    ),
    cost=cost,
    gradient=NoGradient("rounding to 8 bits has no useful derivative; what learns holds its weights in wider floats"),
)
