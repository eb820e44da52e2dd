"""Rotary position embedding: pairs of columns turned by an angle that depends on the row."""

from __future__ import annotations

from typing import Any

import torch

from kernelmux.registry.cases import Case, integers
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import Call, Composed, Constraint, OpSpec, Output, Scalar, Tensor


def pairs(x: torch.Tensor, interleaved: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The two halves of each row, or the even and the odd columns [B H M E]."""
    if interleaved:
        return x[..., 0::2], x[..., 1::2]
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]


def joined(first: torch.Tensor, second: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """What `pairs` took apart [B H M D]."""
    return torch.stack((first, second), -1).flatten(-2) if interleaved else torch.cat((first, second), -1)


def over_heads(x: torch.Tensor) -> torch.Tensor:
    """cos or sin, [M E] or [B M E], as it meets [B H M E]."""
    return x[:, None] if x.dim() == 3 else x


def reference(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    (a, b), c, s = pairs(x, interleaved), over_heads(cos), over_heads(sin)
    return joined(a * c - b * s, b * c + a * s, interleaved)


def magnitude(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    (a, b), c, s = pairs(x.abs(), interleaved), over_heads(cos.abs()), over_heads(sin.abs())
    return joined(a * c + b * s, b * c + a * s, interleaved)


def exact(case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Integers whose products add up to numbers of every dtype."""
    made = {"x": integers(case.shapes["x"], dtype, rng, 60)}
    return made | {name: integers(case.shapes[name], dtype, rng, 2) for name in ("cos", "sin")}


def cost(call: Call) -> Cost:
    x, cos, sin = (call.arguments[name] for name in ("x", "cos", "sin"))
    return Cost(bytes=2 * x.nbytes + cos.nbytes + sin.nbytes, flops=3 * x.numel())


def _case(x: str, more: str = "", own: bool = False, **options: Any) -> Case:
    """own: an angle for each of B."""
    b, _, m, d = x.split("x")
    angles = f"{b}x{m}x{int(d) // 2}" if own else f"{m}x{int(d) // 2}"
    return Case(f"x={x} cos={angles} sin={angles} {more}".strip(), **options)


SPEC = OpSpec(
    name="rope",
    version=1,
    family="Attention",
    summary="Rotary position embedding.",
    math="(a, b) -> (a*cos - b*sin, b*cos + a*sin), a and b the halves of each row, or its even and odd columns;"
    " the gradient is rope with -sin",
    sources=("Su et al., RoFormer, 2021",),
    inputs=(
        Tensor("x", "B H M D", doc="queries or keys: batch, heads, positions, columns"),
        Tensor("cos", "M E | B M E", like="x", doc="of the angle of each position and pair of columns, E = D/2"),
        Tensor("sin", "M E | B M E", like="x", doc="of the same shape as cos, or the other one"),
        Scalar(
            "interleaved", bool, False, trials=(True,), doc="neighbouring columns are a pair, and not the two halves"
        ),
    ),
    outputs=(Output("y", like="x"),),
    constraints=(Constraint("D = 2 * E", lambda v: v["D"] == 2 * v["E"]),),
    reference=reference,
    error=ErrorModel(magnitude=magnitude, flushes=True),
    exact=exact,
    cases=(
        _case("2x3x5x8", tier="smoke"),
        _case("1x1x1x2"),
        _case("1x2x17x64", "interleaved=True"),
        _case("2x3x33x128", own=True),
        _case("2x2x7x10", "interleaved=True", own=True),
        _case("1x4x9x66"),
        _case("3x1x130x32", inputs="wide"),
        _case("1x2x8x8"),
        _case("0x2x5x8"),
        _case("1x2x0x8"),
        _case("2x2x5x16", "interleaved=True", inputs="sparse"),
        _case("2x8x1027x128", tier="full"),
        _case("1x1x70001x64", own=True, tier="full"),
    ),
    workloads=(_case("4x32x4096x128"), _case("4x8x4096x128")),
    cost=cost,
    gradient=Composed(("x",), lambda kx, v, g: {"x": kx.rope(g["y"], v["cos"], -v["sin"], v["interleaved"])}),
)
