"""Gradient of attention, from its output and the logarithms of its sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from kernelmux.registry.cases import Case
from kernelmux.registry.cost import Cost
from kernelmux.registry.dtypes import FLOATS
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.ops import attention
from kernelmux.registry.ops.matmul import PRECISION
from kernelmux.registry.spec import Call, Computed, NoExact, NoGradient, OpSpec, Output, SpecialValues, Tensor
from kernelmux.registry.spec.sliding_windows import Limit

T = torch.Tensor
FLUSHED = 2.0**-105  # added to p: a p below 2^-126 may become zero, and of the bound there are at least 2^-21 of M


def shared(x: T, groups: int) -> T:
    """The sum over the query heads [B H N D] that share a key/value head [B G N D]."""
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]).sum(2)


def repeated(x: T, heads: int) -> T:
    """Each key/value head repeated for the query heads that share it."""
    return x.repeat_interleave(heads // x.shape[1], dim=1)


def parts(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> tuple[T, T, T, T]:
    """p and ds; for their errors the magnitude of p, and |grad_out||v|^T + sum|grad_out * y|."""
    s, spread = attention.scores(q, k, causal, scale, window, ahead)
    seen = attention.visible(q.shape[2], k.shape[2], causal, window, ahead, q.device)
    # A row that sees no key has lse = -inf and no part in anything.
    p = torch.where(seen, torch.exp(s - lse[..., None]), 0.0)
    v = repeated(v, q.shape[1])
    delta = (grad_out * y).sum(-1, keepdim=True)
    # NaN where a key that is not seen meets one: what is not seen has no part, whatever stands there.
    ds = torch.where(seen, p * (grad_out @ v.mT - delta), 0.0)
    sizes = grad_out.abs() @ v.abs().mT + (grad_out * y).abs().sum(-1, keepdim=True)
    often = (1 + spread + torch.where(seen, lse[..., None].abs(), 0.0)) * attention.blur(spread, precision)
    return p, ds, torch.where(seen, (p + FLUSHED) * often, 0.0), sizes


def reference(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> tuple[T, T, T]:
    p, ds, *_ = parts(grad_out, q, k, v, y, lse, causal, scale, window, precision, ahead)
    groups = k.shape[1]
    return scale * (ds @ repeated(k, q.shape[1])), shared(scale * (ds.mT @ q), groups), shared(p.mT @ grad_out, groups)


def magnitude_q(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> T:
    """|scale| * (p * (1 + error of the score) * (|grad_out||v|^T + sum|grad_out * y|)) |k|."""
    _, _, size, sizes = parts(grad_out, q, k, v, y, lse, causal, scale, window, precision, ahead)
    return abs(scale) * ((size * sizes) @ repeated(k, q.shape[1]).abs())


def magnitude_k(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> T:
    _, _, size, sizes = parts(grad_out, q, k, v, y, lse, causal, scale, window, precision, ahead)
    return shared(abs(scale) * ((size * sizes).mT @ q.abs()), k.shape[1])


def magnitude_v(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> T:
    size = parts(grad_out, q, k, v, y, lse, causal, scale, window, precision, ahead)[2]
    return shared(size.mT @ grad_out.abs(), k.shape[1])


def rounded_q(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> T:
    """ds is rounded to the storage dtype before it meets k."""
    ds = parts(grad_out, q, k, v, y, lse, causal, scale, window, precision, ahead)[1]
    return abs(scale) * (ds.abs() @ repeated(k, q.shape[1]).abs())


def rounded_k(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> T:
    ds = parts(grad_out, q, k, v, y, lse, causal, scale, window, precision, ahead)[1]
    return shared(abs(scale) * (ds.abs().mT @ q.abs()), k.shape[1])


def rounded_v(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> T:
    """p is rounded to the storage dtype before it meets grad_out."""
    p = parts(grad_out, q, k, v, y, lse, causal, scale, window, precision, ahead)[0]
    return shared(p.mT @ grad_out.abs(), k.shape[1])


def sensitivity_q(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> T:
    seen = attention.visible(q.shape[2], k.shape[2], causal, window, ahead, q.device).to(q.dtype)
    return abs(scale) * (seen @ repeated(k, q.shape[1]).abs())


def sensitivity_k(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> T:
    seen = attention.visible(q.shape[2], k.shape[2], causal, window, ahead, q.device).to(q.dtype)
    return shared(abs(scale) * (seen.mT @ q.abs()), k.shape[1])


def sensitivity_v(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> T:
    seen = attention.visible(q.shape[2], k.shape[2], causal, window, ahead, q.device).to(q.dtype)
    return shared(seen.mT @ grad_out.abs(), k.shape[1])


def cost(call: Call) -> Cost:
    b, h, g, m, n, d = (call.axes[axis] for axis in "BHGMND")
    seen = attention.pairs(call.axes, *(call.arguments[name] for name in ("causal", "window", "ahead")))
    size = call.arguments["q"].element_size()
    moved = (4 * b * h * m * d + 4 * b * g * n * d) * size + 4 * b * h * m
    return Cost(bytes=moved, flops=10 * b * h * seen * d, unit=attention.unit(call))


def forward(arguments: Mapping[str, Any]) -> tuple[T, T]:
    """What the forward call returns and saves."""
    names = ("q", "k", "v", "causal", "scale", "window", "precision", "ahead")
    return attention.reference(*(arguments[name] for name in names))


def _case(q: str, k: str, more: str = "", **options: Any) -> Case:
    lse = q.rsplit("x", 1)[0]
    return Case(f"grad_out={q} q={q} k={k} v={k} y={q} lse={lse} {more}".strip(), **options)


SAME = "as in the forward call"


def terms_of_rows(axes: Mapping[str, Any]) -> int:
    """What is summed for a query: its keys, behind sums over D."""
    return int(axes["N"] + 2 * axes["D"])


def terms_of_columns(axes: Mapping[str, Any]) -> int:
    """What is summed for a key: the queries of all heads that share it, behind sums over D."""
    return int(axes["M"] * (axes["H"] // max(axes["G"], 1)) + 2 * axes["D"])


def _model(
    magnitude: Callable[..., T], rounded: Callable[..., T], sensitivity: Callable[..., T], terms: Any
) -> ErrorModel:
    return ErrorModel(magnitude=magnitude, terms=terms, intermediate=rounded, sensitivity=sensitivity, flushes=True)


SPEC = OpSpec(
    name="attention_backward",
    version=2,
    family="Attention",
    summary="Gradients of attention; the M x N matrices are computed again and never reach memory.",
    math="p = exp(scale * q k^T - lse) where a key is seen, else 0; ds = p * (grad_out v^T - sum(grad_out * y));"
    " grad_q = scale * ds k; grad_k = scale * ds^T q; grad_v = p^T grad_out, the last two summed over the query heads that"
    " share a head",
    sources=("Dao et al., FlashAttention, 2022, appendix B", "Dao, FlashAttention-2, 2023"),
    inputs=(
        Tensor("grad_out", "B H M D", dtypes=FLOATS, doc="gradient of the output of attention"),
        Tensor("q", "B H M D", like="grad_out", doc=SAME),
        Tensor("k", "B G N D", like="grad_out", doc=SAME),
        Tensor("v", "B G N D", like="grad_out", doc=SAME),
        Tensor(
            "y",
            "B H M D",
            like="grad_out",
            domain=Computed(lambda arguments: forward(arguments)[0]),
            doc="what the forward call returned",
        ),
        Tensor(
            "lse",
            "B H M",
            dtypes=attention.FP32,
            domain=Computed(lambda arguments: forward(arguments)[1]),
            doc="what the forward call saved",
        ),
        replace(attention.CAUSAL, doc=SAME),
        replace(attention.SCALE, doc=SAME),
        replace(attention.WINDOW, doc=SAME),
        PRECISION,
        replace(attention.AHEAD, doc=SAME, since=2),
    ),
    outputs=(Output("grad_q", like="q"), Output("grad_k", like="k"), Output("grad_v", like="v")),
    constraints=(*attention.CONSTRAINTS, attention.ONE_BOUND),
    normalise=attention.normalise,
    reference=reference,
    arithmetics=("fp32", "fp32_sequential", "mma"),
    error=(
        _model(magnitude_q, rounded_q, sensitivity_q, terms_of_rows),
        _model(magnitude_k, rounded_k, sensitivity_k, terms_of_columns),
        _model(magnitude_v, rounded_v, sensitivity_v, terms_of_columns),
    ),
    exact=NoExact("lse is the logarithm of a number of keys, which no format holds, but for a single key"),
    special=SpecialValues(
        on=attention.unmasked,
        undefined=dict.fromkeys(
            ("largest", "inf", "-inf"), "of infinite scores and sums the forward call left no number"
        ),
    ),
    cases=(
        _case("1x2x32x64", "1x2x48x64", tier="smoke"),
        _case("1x2x17x64", "1x1x64x64", tier="smoke"),
        _case("1x1x1x64", "1x1x3x64"),
        _case("2x4x64x128", "2x2x64x128"),
        _case("1x2x130x64", "1x2x130x64", "causal=True"),
        _case("1x4x65x128", "1x1x140x128", "causal=True"),
        _case("1x2x5x64", "1x2x200x64", "causal=True scale=0.5"),
        _case("1x6x3x72", "1x2x5x72"),
        _case("1x2x33x16", "1x1x70x16", "causal=True"),
        _case("1x1x40x24", "1x1x40x24"),
        _case("1x2x65x80", "1x1x70x80", "causal=True"),
        _case("1x1x70x96", "1x1x90x96", "causal=True"),
        _case("1x1x33x192", "1x1x70x192", "causal=True"),
        _case("1x2x65x256", "1x1x70x256", "causal=True"),
        _case("1x1x100x64", "1x1x150x64", "causal=True window=40"),
        _case("1x1x70x128", "1x1x70x128", "window=5"),
        _case("1x2x100x64", "1x1x100x64", "window=33 ahead=20"),
        _case("1x1x65x128", "1x1x90x128", "window=40 ahead=1"),
        _case("1x1x60x64", "1x1x50x64", "ahead=30"),
        _case("1x1x150x64", "1x1x33x64", "causal=True"),
        _case("1x1x9x16", "1x1x12x16", "causal=True precision=tf32", dtypes=attention.FP32),
        _case("1x1x20x72", "1x1x30x72", "causal=True window=9"),
        _case("1x2x33x64", "1x1x70x64", "causal=True scale=-0.3"),
        _case("1x1x20x64", "1x1x77x64", "scale=0.0"),
        _case("0x2x5x64", "0x2x7x64"),
        _case("1x2x0x64", "1x2x7x64"),
        _case("1x2x5x64", "1x2x0x64"),
        _case("2x8x1027x64", "2x2x1027x64", "causal=True", tier="full"),
        _case("2x4x1024x128", "2x4x1024x128", tier="full"),
        _case("1x4x513x128", "1x4x2049x128", "causal=True", tier="full"),
        _case("1x8x1000x96", "1x2x1500x96", "causal=True", tier="full"),
        _case("1x4x777x256", "1x4x777x256", "causal=True", tier="full"),
        _case("1x4x2048x128", "1x1x2048x128", "causal=True window=512", tier="full"),
        _case("1x4x2048x128", "1x4x2048x128", "window=257 ahead=256", tier="full"),
        _case("1x4x33x96", "1x4x2500x96", tier="full"),  # neither few keys nor many: two walks
        _case("1x32x16x128", "1x1x2048x128", tier="full"),  # many keys for all heads: one walk
    ),
    workloads=(
        _case("4x32x4096x128", "4x32x4096x128", dtypes=attention.HALVES),
        _case("4x32x4096x128", "4x32x4096x128", "causal=True", dtypes=attention.HALVES),
        _case("4x32x4096x64", "4x32x4096x64", dtypes=attention.HALVES),
        _case("4x32x4096x64", "4x32x4096x64", "causal=True", dtypes=attention.HALVES),
        _case("4x32x4096x128", "4x8x4096x128", "causal=True", dtypes=attention.HALVES),
        _case("4x16x8192x64", "4x16x8192x64", "window=65 ahead=64", dtypes=attention.HALVES),
        _case("4x16x4096x96", "4x16x4096x96", "causal=True", dtypes=attention.HALVES),
        _case("2x16x4096x256", "2x16x4096x256", "causal=True", dtypes=attention.HALVES),
        _case("1x16x1024x64", "1x16x1024x64", "causal=True", dtypes=attention.FP32),
    ),
    cost=cost,
    gradient=NoGradient("a gradient itself: torch_ref differentiates it"),
)
