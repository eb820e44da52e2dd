"""Layer normalisation of the last axis, with a weight and, if given, a bias per column."""

from __future__ import annotations

import torch

from kernelmux.registry.cases import Case
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import BatchInvariant, Call, Gradient, OpSpec, Output, Scalar, SpecialValues, Tensor

MEAN_SQUARED = 2.0**-19  # of the spread: what 32 roundings to fp32 of the mean do to the variance, 32 * 2^-24


def centred(x: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The distance of each value from the mean of its row, and 1 / sqrt(variance + eps) [... 1]."""
    c = x - x.mean(-1, keepdim=True)
    return c, 1 / torch.sqrt((c * c).mean(-1, keepdim=True) + eps)


def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    c, r = centred(x, eps)
    y = c * r * weight
    return y if bias is None else y + bias


def spread(x: torch.Tensor, eps: float) -> torch.Tensor:
    """What an error in the mean, relative to mean |x|, does to c * r: r * mean |x|  [... 1]."""
    return centred(x, eps)[1] * x.abs().mean(-1, keepdim=True)


def magnitude(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    """|w| * (|c| * r + e) + |b|, e = `spread`.

    The mean is summed from terms of the size of |x|, whatever it cancels to. In the variance its error d is d^2, since
    the distances add up to 0: that matters where a row hardly varies, and r with it by (d * r)^2 / 2.
    """
    c, r = centred(x, eps)
    e = spread(x, eps)
    m = weight.abs() * (c.abs() * r * (1 + e * e * MEAN_SQUARED) + e)
    return m if bias is None else m + bias.abs()


def exact(case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, torch.Tensor] | None:
    """As many 2^12 as -2^12 in rows of a length 2^m: the mean is 0, the variance 4^12, and eps vanishes beside it."""
    shape = case.shapes["x"]
    n = shape[-1]
    if 0 in shape or n < 2 or n & (n - 1) or case.scalars.get("eps", 0.0) > 1e-5:
        return None
    order = torch.rand(shape, generator=rng).argsort(-1)
    made = {
        "x": torch.where(order % 2 == 0, 2.0**12, -(2.0**12)),
        "weight": 2.0 ** torch.randint(-2, 3, (n,), generator=rng),
        "bias": torch.where(torch.rand(n, generator=rng) < 0.5, 0.0625, -0.0625),
    }
    return {name: made[name].to(dtype) for name in case.shapes}


def cost(call: Call) -> Cost:
    x = call.arguments["x"]
    columns = sum(t.numel() for name, t in call.tensors.items() if name != "x")
    return Cost(bytes=(2 * x.numel() + columns) * x.element_size(), flops=8 * x.numel())


EPS = Scalar(
    "eps",
    float,
    1e-5,
    range=(1e-12, 1.0),
    trials=(1e-12, 1e-6, 1e-3, 0.1, 1.0),
    doc="added to the variance; not 0, which would make a row of equal numbers 0 / 0",
)


def _case(x: str, more: str = "", bias: bool = True, **options: object) -> Case:
    n = x.split("x")[-1]
    given = f" bias={n}" if bias else ""
    return Case(f"x={x} weight={n}{given} {more}".strip(), **options)  # type: ignore[arg-type]


SPEC = OpSpec(
    name="layer_norm",
    version=1,
    family="Rows",
    summary="Layer normalisation of the last axis.",
    math="y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight + bias, computed in fp32, rounded once",
    sources=("Ba, Kiros and Hinton, Layer normalization, 2016",),
    inputs=(
        Tensor("x", "... N", doc="one vector, or a matrix of rows of any rank"),
        Tensor("weight", "N", like="x"),
        Tensor("bias", "N", like="x", optional=True),
        EPS,
    ),
    outputs=(Output("y", like="x"),),
    reference=reference,
    error=ErrorModel(magnitude=magnitude, terms=lambda axes: axes["N"], flushes=True),
    exact=exact,
    special=SpecialValues(undefined={"largest": "its square overflows fp32, in which the variance is defined"}),
    cases=(
        _case("4x128", tier="smoke"),
        _case("17"),
        _case("1x1"),
        _case("37x1000", bias=False),
        _case("3x5x65", "eps=1e-3"),
        _case("2x4099"),
        _case("1x33001"),
        _case("0x16"),
        _case("3x0", bias=False),
        _case("9x515", inputs="offset"),
        _case("5x64", inputs="offset", bias=False),
        _case("9x515", inputs="wide", bias=False),
        _case("33x33", inputs="gaps"),
        _case("3x130", "eps=1e-12", inputs="small"),
        _case("3x515", inputs="vast", dtypes=(torch.float32, torch.bfloat16)),
        _case("70000x33", tier="full"),
        _case("128x65536", inputs="offset", tier="full"),
        _case("4x262147", tier="full"),
        _case("4096x8192", tier="full"),
    ),
    workloads=(_case("4096x1024"), _case("16384x8192"), _case("8192x5120"), _case("2048x18432")),
    cost=cost,
    gradient=Gradient("layer_norm_backward", wrt=("x", "weight", "bias")),
    properties=(BatchInvariant(),),
)
