"""Scaled dot-product attention, causal or not, with grouped queries."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from kernelmux.registry.cases import Case
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import Call, Constraint, NoGradient, OpSpec, Output, Scalar, SpecialValues, Tensor


def _heads(x: torch.Tensor, count: int) -> torch.Tensor:
    """Each key/value head repeated for the query heads that share it."""
    return x.repeat_interleave(count // x.shape[1], dim=1) if x.shape[1] else x


def visible(rows: int, columns: int, device: torch.device) -> torch.Tensor:
    """Which key each query sees: the last query sees every key, each earlier one a key less."""
    i, j = torch.arange(rows, device=device), torch.arange(columns, device=device)
    return j[None, :] <= i[:, None] + columns - rows


def weights(q: torch.Tensor, k: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    """The attention matrix p [B, H, M, N]."""
    s = torch.einsum("bhmd,bhnd->bhmn", q, _heads(k, q.shape[1])) * scale
    if causal:
        s = torch.where(visible(s.shape[-2], s.shape[-1], s.device), s, -math.inf)
    e = torch.exp(s - s.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    return weights(q, k, causal, scale) @ _heads(v, q.shape[1])


def magnitude(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    """The scores' error enters through exp: p * (1 + sum|q||k| * scale) @ |v|.

    A score may be off by some 64 * 2^-23 of what it is summed from, so that p may be exp of twice that larger. It hardly
    differs from p, but for scores beyond 10^4, where rounding decides which key weighs most.
    """
    spread = torch.einsum("bhmd,bhnd->bhmn", q.abs(), _heads(k, q.shape[1]).abs()) * abs(scale)
    p = weights(q, k, causal, scale) * torch.exp((spread * 2.0**-16).clamp(max=600))
    return (p.clamp(max=1) * (1 + spread)) @ _heads(v, q.shape[1]).abs()


def rounded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    """Fused kernels round p to the storage dtype before p @ v, and are right (budget 157 without this term)."""
    return weights(q, k, causal, scale) @ _heads(v, q.shape[1]).abs()


def sensitivity(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    """Kernels round exp(s - max s), of which the largest is 1, and divide by the sum at the end: sum|v| / sum of exp."""
    largest = weights(q, k, causal, scale).amax(-1, keepdim=True)
    return largest * _heads(v, q.shape[1]).abs().sum(-2, keepdim=True)


def exact(case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, torch.Tensor] | None:
    """Zero queries weigh 2^m visible keys equally, and integer values then have means that every format holds."""
    q, k = case.shapes["q"], case.shapes["k"]
    n = k[2]
    if 0 in q or n & (n - 1) or n > 128 or case.scalars.get("causal"):
        return None
    values = torch.randint(-1, 2, k, generator=rng).to(dtype)
    return {"q": torch.zeros(q, dtype=dtype), "k": torch.randn(k, generator=rng).to(dtype), "v": values}


def normalise(arguments: dict[str, Any], axes: Mapping[str, Any]) -> None:
    if arguments["scale"] is None and axes["D"]:
        arguments["scale"] = 1 / math.sqrt(axes["D"])


def cost(call: Call) -> Cost:
    b, h, g, m, n, d = (call.axes[axis] for axis in "BHGMND")
    pairs = m * n - m * (m - 1) // 2 if call.arguments["causal"] else m * n
    size = call.arguments["q"].element_size()
    unit = "fma" if call.dtype == torch.float32 else "tensor"
    return Cost(bytes=(2 * b * h * m * d + 2 * b * g * n * d) * size, flops=4 * b * h * pairs * d, unit=unit)


def _case(q: str, k: str, more: str = "", **options: Any) -> Case:
    return Case(f"q={q} k={k} v={k} {more}".strip(), **options)


HALVES = (torch.float16, torch.bfloat16)

SPEC = OpSpec(
    name="attention",
    version=1,
    summary="Scaled dot-product attention; the M x N matrix of weights never reaches memory.",
    math="y = softmax(scale * q k^T [+ causal mask]) v; key j is visible to query i iff j <= i + N - M",
    sources=("Dao et al., FlashAttention, 2022", "Dao, FlashAttention-2, 2023", "Ainslie et al., GQA, 2023"),
    inputs=(
        Tensor("q", "B H M D", dtypes=HALVES),
        Tensor("k", "B G N D", like="q", doc="G key/value heads, each shared by H/G query heads"),
        Tensor("v", "B G N D", like="q"),
        Scalar("causal", bool, False, trials=(True,), doc="the last query sees every key, each earlier one a key less"),
        Scalar(
            "scale",
            float,
            None,
            optional=True,
            trials=(0.0, 1e-46, -0.125, 0.3, 1.0, -3.0, 10.0),
            doc="None stands for 1/sqrt(D); scaled scores must stay within fp32",
        ),
    ),
    outputs=(Output("y", like="q"),),
    constraints=(
        Constraint("G >= 1", lambda v: v["G"] >= 1),
        Constraint("H a multiple of G", lambda v: v["H"] % v["G"] == 0),
        Constraint("N >= 1", lambda v: v["N"] >= 1),
        Constraint("D >= 1", lambda v: v["D"] >= 1),
        Constraint("N >= M if causal", lambda v: not v["causal"] or v["N"] >= v["M"]),
    ),
    normalise=normalise,
    reference=reference,
    arithmetics=("fp32", "mma"),
    error=ErrorModel(
        magnitude=magnitude,
        terms=lambda axes: axes["N"] + axes["D"],
        intermediate=rounded,
        sensitivity=sensitivity,
        flushes=True,
    ),
    exact=exact,
    special=SpecialValues(
        # What lies behind the mask is read by some tilings, and not by others.
        on=lambda arguments: not arguments["causal"],
        undefined={
            "largest": "scores beyond fp32 overflow before the softmax brings them back",
            "inf": "inf - inf and 0 * inf arise at places that depend on the tiling",
            "-inf": "inf - inf and 0 * inf arise at places that depend on the tiling",
        },
    ),
    cases=(
        _case("1x2x32x64", "1x2x48x64", tier="smoke"),
        _case("1x2x17x64", "1x1x64x64", tier="smoke"),
        _case("1x1x1x64", "1x1x1x64"),
        _case("1x2x17x64", "1x1x33x64"),
        _case("2x4x64x128", "2x2x64x128"),
        _case("1x2x130x64", "1x2x130x64", "causal=True"),
        _case("1x4x65x128", "1x1x140x128", "causal=True"),
        _case("1x2x5x64", "1x2x200x64", "causal=True scale=0.5"),
        _case("1x2x40x64", "1x1x123x64"),
        _case("1x1x100x64", "1x1x228x64", "causal=True"),
        _case("1x1x64x64", "1x1x64x64", "causal=True"),
        _case("2x3x64x64", "2x1x72x64", "causal=True"),
        _case("1x6x3x72", "1x2x5x72"),
        _case("1x1x20x64", "1x1x77x64", "scale=0.0"),
        _case("1x1x33x128", "1x1x70x128", "causal=True scale=0.0"),
        _case("1x2x33x64", "1x1x70x64", "causal=True scale=-0.3"),
        _case("1x1x33x64", "1x1x33x64", "causal=True scale=-0.3"),
        _case("0x2x5x64", "0x2x7x64"),
        _case("1x2x0x64", "1x2x7x64"),
        _case("1x2x40x64", "1x2x100x64", inputs="wide", tags=frozenset({"large scores"})),
        _case("1x1x33x128", "1x1x108x128", inputs="wide", tags=frozenset({"large scores"})),
        _case("2x8x1027x64", "2x2x1027x64", "causal=True", tier="full"),
        _case("2x8x1024x128", "2x8x1024x128", tier="full"),
        _case("1x4x513x128", "1x4x2049x128", "causal=True", tier="full"),
    ),
    workloads=(
        _case("4x32x4096x128", "4x32x4096x128"),
        _case("4x32x4096x128", "4x32x4096x128", "causal=True"),
        _case("4x32x4096x64", "4x32x4096x64"),
        _case("4x32x4096x128", "4x8x4096x128", "causal=True"),
    ),
    cost=cost,
    gradient=NoGradient("its backward operator is not there yet; torch_ref differentiates it"),
)
