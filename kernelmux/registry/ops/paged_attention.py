"""Attention of one new query per sequence over keys and values that lie in pages of a cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kernelmux.registry.cases import Case
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.ops import attention
from kernelmux.registry.spec import (
    Call,
    Constraint,
    Count,
    Index,
    NoExact,
    NoGradient,
    OpSpec,
    Output,
    SpecialValues,
    Tensor,
)

T = torch.Tensor


def gathered(pages: T, page_table: T) -> T:
    """The keys or values of each sequence, in order [B G L*S D]: those of pages that it does not reach are among them."""
    found = pages[page_table.clamp(0, max(pages.shape[0] - 1, 0)).long()] if pages.shape[0] else None
    if found is None:
        return pages.new_zeros(page_table.shape[0], pages.shape[1], 0, pages.shape[3])
    return found.transpose(1, 2).flatten(2, 3)


def parts(q: T, k_pages: T, v_pages: T, page_table: T, lengths: T, scale: float) -> tuple[T, T, T]:
    """Scores [B H N], what they are summed from without signs, values [B H N D].

    A score is -inf behind the end of a sequence, and NaN for a page that is none and for a length that cannot be.
    """
    k, v = (attention.repeated(gathered(x, page_table), q.shape[1]) for x in (k_pages, v_pages))
    inside = torch.arange(k.shape[2], device=q.device) < lengths[:, None, None]
    known = ((page_table >= 0) & (page_table < k_pages.shape[0])).repeat_interleave(k_pages.shape[2], 1)[:, None]
    possible = ((lengths >= 0) & (lengths <= k.shape[2]))[:, None, None]
    s = torch.where(inside, torch.where(known, (k @ q[..., None])[..., 0] * scale, torch.nan), -torch.inf)
    s = torch.where(possible, s, torch.nan)
    spread = torch.where(inside, (k.abs() @ q.abs()[..., None])[..., 0] * abs(scale), 0.0)
    return s, spread, torch.where(inside[..., None], v, 0.0)


def reference(q: T, k_pages: T, v_pages: T, page_table: T, lengths: T, scale: float) -> T:
    s, _, v = parts(q, k_pages, v_pages, page_table, lengths, scale)
    return (attention.normalised(s)[0][..., None, :] @ v)[..., 0, :]


def magnitude(q: T, k_pages: T, v_pages: T, page_table: T, lengths: T, scale: float) -> T:
    """As in attention."""
    s, spread, v = parts(q, k_pages, v_pages, page_table, lengths, scale)
    p = attention.normalised(s)[0] * attention.blur(spread, "ieee")
    return ((p.clamp(max=1) * (1 + spread))[..., None, :] @ v.abs())[..., 0, :]


def rounded(q: T, k_pages: T, v_pages: T, page_table: T, lengths: T, scale: float) -> T:
    """p is rounded to the storage dtype before p @ v."""
    s, _, v = parts(q, k_pages, v_pages, page_table, lengths, scale)
    return (attention.normalised(s)[0][..., None, :] @ v.abs())[..., 0, :]


def sensitivity(q: T, k_pages: T, v_pages: T, page_table: T, lengths: T, scale: float) -> T:
    s, _, v = parts(q, k_pages, v_pages, page_table, lengths, scale)
    if not s.shape[-1]:
        return torch.zeros_like(q)
    return attention.normalised(s)[0].amax(-1)[..., None] * v.abs().sum(-2)


def cost(call: Call) -> Cost:
    b, h, g, d, pages, slots = (call.axes[axis] for axis in "BHGDLS")
    lengths = call.arguments["lengths"]
    keys = b * pages * slots if call.hypothetical or lengths.is_meta else int(lengths.sum())
    size = call.arguments["q"].element_size()
    return Cost(
        bytes=(2 * b * h * d + 2 * keys * g * d) * size + 4 * b * (pages + 1), flops=4 * keys * h * d, unit="tensor"
    )


def _case(q: str, pages: str, table: str, more: str = "", **options: Any) -> Case:
    batch = q.split("x", maxsplit=1)[0]
    text = f"q={q} k_pages={pages} v_pages={pages} page_table={batch}x{table} lengths={batch} {more}"
    return Case(text.strip(), **options)


def reached(arguments: Mapping[str, Any]) -> torch.Tensor:
    """Which entries of the table [B, L] are of pages that hold keys of their sequence."""
    table, lengths = arguments["page_table"], arguments["lengths"]
    first = torch.arange(table.shape[1], device=table.device) * arguments["k_pages"].shape[2]
    found: torch.Tensor = first < lengths[:, None]
    return found


INTEGERS = (torch.int32,)

SPEC = OpSpec(
    name="paged_attention",
    version=1,
    family="Attention",
    summary="Attention of one query per sequence over a cache of pages: a step of decoding.",
    math="y[b] = softmax(scale * q[b] k^T) v over the lengths[b] keys of a sequence; key j lies in page"
    " page_table[b, j // S] at j % S; a sequence of length 0 gives 0",
    sources=("Kwon et al., Efficient memory management for LLM serving with PagedAttention, 2023",),
    inputs=(
        Tensor("q", "B H D", doc="one query per sequence and head", dtypes=attention.HALVES),
        Tensor("k_pages", "P G S D", like="q", doc="P pages of S keys; G heads, each shared by H/G query heads"),
        Tensor("v_pages", "P G S D", like="q"),
        Tensor(
            "page_table",
            "B L",
            dtypes=INTEGERS,
            domain=Index("P", used=reached),
            doc="the pages of a sequence in order; entries behind the last one that it reaches are not looked at; one that"
            " is no page gives its sequence NaN; with KERNELMUX_CHECK=1 it is an ArgumentError",
        ),
        Tensor(
            "lengths",
            "B",
            dtypes=INTEGERS,
            domain=Count("L", "S"),
            doc="keys of each sequence, 0 to L * S; another number is met like a page that is none",
        ),
        attention.SCALE,
    ),
    outputs=(Output("y", like="q"),),
    constraints=(
        *attention.CONSTRAINTS,
        Constraint("P >= 1 where L and S are", lambda v: v["P"] >= 1 or not v["L"] or not v["S"]),
    ),
    normalise=attention.normalise,
    reference=reference,
    arithmetics=("fp32", "fp32_sequential", "mma"),
    error=ErrorModel(
        magnitude=magnitude,
        terms=lambda axes: axes["L"] * axes["S"] + axes["D"],
        intermediate=rounded,
        sensitivity=sensitivity,
        flushes=True,
    ),
    exact=NoExact("a weight is a fraction that no format holds, but for few lengths"),
    special=SpecialValues(
        undefined={
            "largest": "scores beyond fp32 overflow before the softmax brings them back",
            "inf": "inf - inf and 0 * inf arise at places that depend on the tiling",
            "-inf": "inf - inf and 0 * inf arise at places that depend on the tiling",
        },
    ),
    cases=(
        _case("2x4x64", "5x2x16x64", "3", tier="smoke"),
        _case("1x1x64", "1x1x1x64", "1"),
        _case("3x8x128", "9x2x16x128", "7"),
        _case("2x2x64", "3x1x64x64", "2"),
        _case("2x6x72", "7x2x8x72", "9", "scale=0.3"),
        _case("1x4x256", "4x1x32x256", "3"),
        _case("5x3x80", "11x3x5x80", "13"),
        _case("2x16x96", "40x1x16x96", "33"),
        _case("2x8x128", "6x8x128x128", "5", "scale=-0.2"),
        _case("37x2x64", "5x1x16x64", "3"),  # more sequences than lanes of a warp
        _case("2x4x16", "5x2x16x16", "3"),
        _case("0x2x64", "3x1x16x64", "2"),
        _case("2x2x64", "3x1x16x64", "0"),
        _case("1x64x64", "4x1x16x64", "3", dtypes=(torch.float16,)),  # queries of one head of keys for four warps
        _case("64x1x64", "5x1x16x64", "2", dtypes=(torch.bfloat16,)),  # many heads of keys
        _case("16x32x128", "700x8x16x128", "300", tier="full"),
        _case("3x16x64", "90x2x256x64", "40", "scale=0.5", tier="full"),
    ),
    workloads=(
        _case("64x32x128", "32768x4x16x128", "512"),
        _case("64x32x128", "2048x4x256x128", "32"),
        _case("8x32x128", "8192x8x16x128", "1024"),
        _case("1x32x128", "4096x8x16x128", "4096"),
    ),
    cost=cost,
    gradient=NoGradient("it serves a model that is not trained; attention has one"),
)
