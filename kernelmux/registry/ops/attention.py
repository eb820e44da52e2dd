"""Scaled dot-product attention: causal or not, in a window or not, with grouped queries."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from kernelmux.registry.cases import Case
from kernelmux.registry.cost import Cost
from kernelmux.registry.dtypes import FLOATS
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.ops.matmul import PRECISION
from kernelmux.registry.spec import Call, Constraint, Gradient, OpSpec, Output, Scalar, SpecialValues, Tensor
from kernelmux.registry.spec.sliding_windows import Limit

T = torch.Tensor
Pair = tuple[T, T]


def repeated(x: T, count: int) -> T:
    """Each key/value head repeated for the query heads that share it."""
    return x.repeat_interleave(count // x.shape[1], dim=1) if x.shape[1] else x


def visible(rows: int, columns: int, causal: bool, window: Limit, ahead: Limit, device: torch.device) -> T:
    """Which key each query sees [M N]: positions are aligned so that the last query stands at the last key."""
    at = torch.arange(rows, device=device)[:, None] + columns - rows
    j = torch.arange(columns, device=device)[None, :]
    seen = torch.ones(rows, columns, dtype=torch.bool, device=device)
    if causal or ahead is not None:
        seen = seen & (j <= at + (ahead or 0))
    return seen if window is None else seen & (j > at - window)


def scores(q: T, k: T, causal: bool, scale: float, window: Limit, ahead: Limit) -> tuple[T, T]:
    """scale * q k^T [B H M N], -inf for keys that are not seen, and what the sums behind them would be without signs."""
    k = repeated(k, q.shape[1])
    seen = visible(q.shape[2], k.shape[2], causal, window, ahead, q.device)
    s = torch.where(seen, torch.einsum("bhmd,bhnd->bhmn", q, k) * scale, -math.inf)
    return s, torch.einsum("bhmd,bhnd->bhmn", q.abs(), k.abs()) * abs(scale)


def normalised(s: T) -> tuple[T, T]:
    """softmax(s) [B H M N] and log(sum(exp(s))) [B H M]; zeros and -inf for a row that sees no key."""
    if not s.shape[-1]:
        return s, s.new_full(s.shape[:-1], -math.inf)
    top = s.amax(-1, keepdim=True)
    top = torch.where(top == -math.inf, 0.0, top)
    e = torch.exp(s - top)
    total = e.sum(-1, keepdim=True)
    return e / torch.where(total == 0, 1.0, total), (top + total.log())[..., 0]


def reference(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    p, lse = normalised(scores(q, k, causal, scale, window, ahead)[0])
    return p @ repeated(v, q.shape[1]), lse


def blur(spread: T, precision: str) -> T:
    """By which factor p may be larger as its score is off, from what the score is summed from without signs.

    A score may be off by some 64 * 2^-23 of that, with operands of tf32 by 2 * 2^-10, and p by exp of twice as much. It is
    close to 1 but for scores beyond 10^4, where rounding decides which key weighs most.
    """
    return torch.exp((spread * (2.0**-8 if precision == "tf32" else 2.0**-16)).clamp(max=600))


def magnitude(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> T:
    """The scores' error enters through exp, of a key and of the sum that divides it, where spread is sum|q||k| * scale:

    p * (1 + spread) @ |v|, and sum(p * spread) * (p @ |v|).
    """
    s, spread = scores(q, k, causal, scale, window, ahead)
    weights, sizes = normalised(s)[0], repeated(v, q.shape[1]).abs()
    p = (weights * blur(spread, precision)).clamp(max=1)
    return (p * (1 + spread)) @ sizes + (p * spread).sum(-1, keepdim=True) * (weights @ sizes)


def magnitude_lse(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> T:
    """The largest score, the logarithm of a sum that has a relative error, and the scores' error, weighed by p."""
    s, spread = scores(q, k, causal, scale, window, ahead)
    p, lse = normalised(s)
    if not s.shape[-1]:
        return torch.zeros_like(lse)
    share = (p * spread * blur(spread, precision)).sum(-1)
    return (lse.abs() + s.amax(-1).abs() + 1 + torch.minimum(share, spread.amax(-1))).nan_to_num(posinf=0.0)


def rounded(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> T:
    """Fused kernels round p to the storage dtype before p @ v, and are right (budget 157 without this term)."""
    return normalised(scores(q, k, causal, scale, window, ahead)[0])[0] @ repeated(v, q.shape[1]).abs()


def sensitivity(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> T:
    """Kernels round exp(s - max s), of which the largest is 1, and divide by the sum at the end: sum|v| / sum of exp."""
    p = normalised(scores(q, k, causal, scale, window, ahead)[0])[0]
    if not p.shape[-1]:
        return torch.zeros_like(q)
    return p.amax(-1, keepdim=True) * repeated(v, q.shape[1]).abs().sum(-2, keepdim=True)


def exact(case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, T] | None:
    """Zero queries weigh 2^m visible keys equally, and integer values then have means that every format holds."""
    q, k = case.shapes["q"], case.shapes["k"]
    n = k[2]
    masked = any(case.scalars.get(name) not in (False, None) for name in ("causal", "window", "ahead"))
    if 0 in q or n & (n - 1) or not 0 < n <= 128 or masked:
        return None
    values = torch.randint(-1, 2, k, generator=rng).to(dtype)
    return {"q": torch.zeros(q, dtype=dtype), "k": torch.randn(k, generator=rng).to(dtype), "v": values}


def normalise(arguments: dict[str, Any], axes: Mapping[str, Any]) -> None:
    if arguments["scale"] is None and axes["D"]:
        arguments["scale"] = 1 / math.sqrt(axes["D"])
    if arguments.get("window") is not None and not arguments["causal"] and arguments["ahead"] is None:
        arguments["ahead"] = 0


def pairs(axes: Mapping[str, Any], causal: bool, window: Limit, ahead: Limit) -> int:
    """How many keys all queries of a head see together."""
    m, n = axes["M"], axes["N"]
    last = torch.full((m,), n)
    if causal or ahead is not None:
        last = n - m + torch.arange(1, m + 1) + (ahead or 0)
    first = torch.zeros(m, dtype=torch.int64) if window is None else n - m + torch.arange(m) - window + 1
    return int((last.clamp(0, n) - first.clamp(0, n)).clamp(min=0).sum())


def unmasked(arguments: Mapping[str, Any]) -> bool:
    """Whether every query sees every key, whatever the shapes."""
    return not arguments["causal"] and arguments["window"] is None and arguments["ahead"] is None


def unit(call: Call) -> str:
    """The units that the products run on."""
    return "fma" if call.dtype == torch.float32 and call.arguments["precision"] == "ieee" else "tensor"


def cost(call: Call) -> Cost:
    b, h, g, m, n, d = (call.axes[axis] for axis in "BHGMND")
    seen = pairs(call.axes, *(call.arguments[name] for name in ("causal", "window", "ahead")))
    size = call.arguments["q"].element_size()
    moved = (2 * b * h * m * d + 2 * b * g * min(n, seen) * d) * size + 4 * b * h * m
    return Cost(bytes=moved, flops=4 * b * h * seen * d, unit=unit(call))


def case(q: str, k: str, more: str = "", **options: Any) -> Case:
    """A case from the shapes of the queries and of the keys."""
    return Case(f"q={q} k={k} v={k} {more}".strip(), **options)


FP32 = (torch.float32,)
HALVES = (torch.float16, torch.bfloat16)

CAUSAL = Scalar(
    "causal",
    bool,
    False,
    trials=(True,),
    doc="query i sees the keys up to i + N - M: the last query sees all, and with M > N the first M - N see none",
)
SCALE = Scalar(
    "scale",
    float,
    None,
    optional=True,
    range=(-128.0, 128.0),
    trials=(0.0, 1e-46, -0.125, 0.3, 1.0, -3.0, 10.0),
    doc="None stands for 1/sqrt(D), else -128 to 128; scaled scores beyond 2^24, of which fp32 keeps no fraction, are"
    " undefined",
)
WINDOW = Scalar(
    "window",
    int,
    None,
    optional=True,
    range=(1, 2**31 - 1),
    trials=(1, 7, 100),
    doc="of the keys up to its own position a query sees the last so many, itself among them; None: all",
)
AHEAD = Scalar(
    "ahead",
    int,
    None,
    optional=True,
    range=(0, 2**31 - 1),
    trials=(0, 1, 7, 100),
    fit=lambda shapes, scalars: None if scalars.get("causal") else scalars.get("ahead"),
    doc="a query sees so many keys behind its own position; None: all if there is no window, else 0, as with causal=True",
)
CONSTRAINTS = (
    Constraint("G >= 1", lambda v: v["G"] >= 1),
    Constraint("H a multiple of G", lambda v: v["H"] % v["G"] == 0),
    Constraint("D >= 1", lambda v: v["D"] >= 1),
)
ONE_BOUND = Constraint(
    "causal=True or a number of keys ahead, not both", lambda v: not v["causal"] or v["ahead"] is None
)

SPEC = OpSpec(
    name="attention",
    version=3,
    family="Attention",
    summary="Scaled dot-product attention; the M x N matrix of weights never reaches memory.",
    math="y = softmax(scale * q k^T [+ mask]) v; with i' = i + N - M the position of query i among the keys, it sees key j"
    " iff j <= i' + ahead (causal: j <= i') and j > i' - window; a row that sees none is 0",
    sources=(
        "Dao et al., FlashAttention, 2022",
        "Dao, FlashAttention-2, 2023",
        "Ainslie et al., GQA, 2023",
        "Beltagy et al., Longformer, 2020 (window)",
    ),
    inputs=(
        Tensor("q", "B H M D", dtypes=FLOATS),
        Tensor("k", "B G N D", like="q", doc="G key/value heads, each shared by H/G query heads"),
        Tensor("v", "B G N D", like="q"),
        CAUSAL,
        SCALE,
        replace(WINDOW, since=2),
        replace(PRECISION, since=2),
        replace(AHEAD, since=3),
    ),
    outputs=(
        Output("y", like="q"),
        Output(
            "lse",
            like="q",
            dims="B H M",
            dtype=torch.float32,
            saved=True,
            since=2,
            doc="log(sum(exp(scale * q k^T))) over the keys that a query sees, -inf if it sees none",
        ),
    ),
    constraints=(*CONSTRAINTS, ONE_BOUND),
    normalise=normalise,
    reference=reference,
    arithmetics=("fp32", "fp32_sequential", "mma"),
    error=(
        ErrorModel(
            magnitude=magnitude,
            terms=lambda axes: axes["N"] + axes["D"],
            intermediate=rounded,
            sensitivity=sensitivity,
            flushes=True,
        ),
        ErrorModel(magnitude=magnitude_lse, terms=lambda axes: axes["N"] + axes["D"], flushes=True),
    ),
    exact=exact,
    special=SpecialValues(
        # What lies behind the mask is read by some tilings, and not by others.
        on=unmasked,
        undefined={
            "largest": "scores beyond fp32 overflow before the softmax brings them back",
            "inf": "inf - inf and 0 * inf arise at places that depend on the tiling",
            "-inf": "inf - inf and 0 * inf arise at places that depend on the tiling",
        },
    ),
    cases=(
        case("1x2x32x64", "1x2x48x64", tier="smoke"),
        case("1x2x17x64", "1x1x64x64", tier="smoke"),
        case("1x1x1x64", "1x1x1x64"),
        case("1x2x17x64", "1x1x33x64"),
        case("2x4x64x128", "2x2x64x128"),
        case("1x2x130x64", "1x2x130x64", "causal=True"),
        case("1x4x65x128", "1x1x140x128", "causal=True"),
        case("1x2x5x64", "1x2x200x64", "causal=True scale=0.5"),
        case("1x1x100x64", "1x1x228x64", "causal=True"),
        case("2x3x64x64", "2x1x72x64", "causal=True"),
        case("1x6x3x72", "1x2x5x72"),
        case("1x2x33x16", "1x1x70x16", "causal=True"),
        case("1x1x40x24", "1x1x40x24"),
        case("1x2x65x80", "1x1x70x80", "causal=True"),
        case("1x1x130x96", "1x1x150x96", "causal=True"),
        case("1x1x20x160", "1x1x66x160"),
        case("1x1x33x192", "1x1x70x192", "causal=True"),
        case("1x2x65x256", "1x1x130x256", "causal=True"),
        case("1x1x100x64", "1x1x150x64", "causal=True window=40"),
        case("1x2x33x128", "1x1x200x128", "causal=True window=1"),
        case("1x1x70x64", "1x1x70x64", "window=5"),
        case("1x2x130x64", "1x1x130x64", "window=33 ahead=20"),
        case("1x1x65x128", "1x1x140x128", "window=40 ahead=1"),
        case("1x1x100x64", "1x1x90x64", "ahead=30"),
        case("1x4x5x64", "1x1x300x64", "window=130 ahead=2"),
        case("1x2x33x80", "1x2x33x80", "window=4 ahead=40"),
        case("1x1x150x64", "1x1x33x64", "causal=True"),
        case("1x1x70x128", "1x1x5x128", "causal=True window=3"),
        case("1x1x33x64", "1x1x70x64", "causal=True precision=tf32", dtypes=FP32),
        case("1x1x20x64", "1x1x77x64", "scale=0.0"),
        case("1x1x33x128", "1x1x70x128", "causal=True scale=0.0"),
        case("1x2x33x64", "1x1x70x64", "causal=True scale=-0.3"),
        case("1x2x9x72", "1x1x40x72", "precision=tf32", dtypes=FP32),
        case("2x8x1x128", "2x2x700x128"),
        case("1x5x13x96", "1x1x200x96", dtypes=(torch.float16,)),  # 65 rows, a ring of keys filled anew
        case("1x6x26x64", "1x2x150x64", "causal=True"),
        case("1x4x4x64", "1x1x300x64", "causal=True window=130"),
        case("0x2x5x64", "0x2x7x64"),
        case("1x2x0x64", "1x2x7x64"),
        case("1x2x5x64", "1x2x0x64"),
        case("1x2x40x64", "1x2x100x64", inputs="wide", tags=frozenset({"large scores"})),
        case("1x1x33x128", "1x1x108x128", inputs="wide", tags=frozenset({"large scores"})),
        case("1x1x20x64", "1x1x84x64", "causal=True window=1"),  # 64 keys that no query sees
        case("1x1x3x64", "1x1x1400x64", "causal=True window=20"),  # and 1,378 before the first that is seen
        case("2x8x1027x64", "2x2x1027x64", "causal=True", tier="full"),
        case("2x8x1024x128", "2x8x1024x128", tier="full"),
        case("1x4x513x128", "1x4x2049x128", "causal=True", tier="full"),
        case("1x8x1000x96", "1x2x1500x96", "causal=True", tier="full"),
        case("1x4x777x256", "1x4x777x256", "causal=True", tier="full"),
        case("1x4x2048x128", "1x1x2048x128", "causal=True window=512", tier="full"),
        case("1x4x2048x128", "1x4x2048x128", "window=257 ahead=256", tier="full"),
        case("4x32x1x128", "4x8x8192x128", tier="full"),
        case("1x16x16x64", "1x2x5000x64", "causal=True", tier="full"),
        case("1x9x8x8", "1x1x524288x8", tier="full", dtypes=HALVES),  # so many keys that blocks that split them overlap
        case("1x9x8x8", "1x1x1048576x8", tier="full", dtypes=HALVES),  # and so many that two warpgroups share a tile
    ),
    workloads=(
        case("4x32x4096x128", "4x32x4096x128", dtypes=HALVES),
        case("4x32x4096x128", "4x32x4096x128", "causal=True", dtypes=HALVES),
        case("4x32x4096x64", "4x32x4096x64", dtypes=HALVES),
        case("4x32x4096x64", "4x32x4096x64", "causal=True", dtypes=HALVES),
        case("4x32x4096x128", "4x8x4096x128", "causal=True", dtypes=HALVES),
        case("1x32x16384x128", "1x8x16384x128", "causal=True window=4096", dtypes=HALVES),
        case("4x16x8192x64", "4x16x8192x64", "window=65 ahead=64", dtypes=HALVES),
        case("1x32x2048x128", "1x8x16384x128", "causal=True", dtypes=HALVES),
        case("4x16x4096x96", "4x16x4096x96", dtypes=HALVES),
        case("4x16x4096x192", "4x16x4096x192", "causal=True", dtypes=HALVES),
        case("4x16x4096x256", "4x16x4096x256", dtypes=HALVES),
        case("4x16x4096x256", "4x16x4096x256", "causal=True", dtypes=HALVES),
        case("1x32x1x128", "1x8x4096x128", dtypes=HALVES),
        case("1x32x1x128", "1x8x65536x128", dtypes=HALVES),
        case("32x32x1x128", "32x8x8192x128", dtypes=HALVES),
        case("64x32x1x128", "64x8x4096x128", dtypes=HALVES),
        case("8x32x4x128", "8x8x16384x128", "causal=True", dtypes=HALVES),
        case("32x32x16x128", "32x8x8192x128", "causal=True", dtypes=HALVES),
        case("1x16x1024x64", "1x16x1024x64", "causal=True", dtypes=FP32),
    ),
    cost=cost,
    gradient=Gradient("attention_backward", wrt=("q", "k", "v"), saves=("y", "lse")),
)
