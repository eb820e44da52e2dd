"""A layer of a network: the product with a weight [N, K], a bias and an activation in one operator."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from kernelmux.registry.cases import Case, exact_range, integers
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.ops import gelu, matmul, silu
from kernelmux.registry.spec import Call, Composed, OpSpec, Output, Scalar, SpecialValues, Tensor
from kernelmux.registry.spec.gradient import Deferred

FORMULAS = {
    "gelu": lambda z: gelu.reference(z, "none"),
    "silu": silu.reference,
    "relu": torch.relu,
}
STEEPEST = {"none": 1.0, "gelu": 1.13, "silu": 1.1, "relu": 1.0}  # the largest |slope|, rounded up
Pair = tuple[torch.Tensor, torch.Tensor]
Maybe = torch.Tensor | None


def summed(x: torch.Tensor, weight: torch.Tensor, bias: Maybe) -> torch.Tensor:
    """x weight^T + bias [... N]."""
    z = torch.einsum("...k,nk->...n", x, weight)
    return z if bias is None else z + bias


def saved(z: torch.Tensor, activation: str) -> torch.Tensor:
    """What is saved of the argument of the activation: all of it, or nothing where there is none."""
    return z.new_empty(0) if activation == "none" else z


def reference(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, activation: str, precision: str) -> Pair:
    z = summed(x, weight, bias)
    return z if activation == "none" else FORMULAS[activation](z), saved(z, activation)


def magnitude_z(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, activation: str, precision: str) -> torch.Tensor:
    return saved(_terms(x, weight, bias), activation)


def magnitude(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, activation: str, precision: str) -> torch.Tensor:
    """The terms of the sum, whose error the activation passes on; its own is one of its argument, which is no larger."""
    own = 0.0 if activation in ("none", "relu") else 1.0
    return (STEEPEST[activation] + own) * _terms(x, weight, bias)


def rounded(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, activation: str, precision: str) -> torch.Tensor:
    """The argument of the activation, which a backend may round: what is saved is that."""
    z = summed(x, weight, bias).abs()
    return STEEPEST[activation] * z if activation != "none" else torch.zeros_like(z)


def _terms(x: torch.Tensor, weight: torch.Tensor, bias: Maybe) -> torch.Tensor:
    return summed(x.abs(), weight.abs(), None if bias is None else bias.abs())


def shape(call: Call) -> tuple[int, ...]:
    return (*call.arguments["x"].shape[:-1], call.axes["N"])


def shape_z(call: Call) -> tuple[int, ...]:
    return (0,) if call.arguments["activation"] == "none" else shape(call)


def rows(values: Mapping[str, Any], axes: Mapping[str, Any]) -> dict[str, int]:
    """M: of how many rows x is."""
    return {"M": math.prod(values["x"].shape[:-1])}


def exact(case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, torch.Tensor] | None:
    """Integers whose sums are exact in fp32 and in the dtype; gelu and silu give such numbers nowhere."""
    if case.scalars.get("activation") in ("gelu", "silu"):
        return None
    largest = min(exact_range(case.shapes["x"][-1] + 1, dtype, products=True), 512)
    return {name: integers(size, dtype, rng, largest) for name, size in case.shapes.items()} if largest else None


def before(kx: Any, activation: str, g: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """The gradient of the argument of the activation."""
    if activation == "gelu":
        return kx.gelu_backward(g, z)  # type: ignore[no-any-return]
    if activation == "silu":
        return kx.silu_backward(g, z)  # type: ignore[no-any-return]
    return g.masked_fill(z <= 0, 0) if activation == "relu" else g


def rows_of(x: torch.Tensor) -> torch.Tensor:
    """Of any rank, as a matrix."""
    return x.flatten(0, -2) if x.dim() > 1 else x[None]


def products(kx: Any, values: Mapping[str, Any], grads: Mapping[str, torch.Tensor]) -> dict[str, Deferred]:
    """Products with transposed views, in the same precision, and the sum over all rows for the bias."""
    x, weight, precision = values["x"], values["weight"], values["precision"]
    g = rows_of(before(kx, values["activation"], grads["y"], values["z"]))
    found: dict[str, Deferred] = {
        "x": lambda: kx.matmul(g, weight, precision).view(x.shape),
        "weight": lambda: kx.matmul(g.mT, rows_of(x), precision),
    }
    return found if values["bias"] is None else {**found, "bias": lambda: kx.reduce_sum(g, 0)}


def cost(call: Call) -> Cost:
    m, n, k = (call.axes[axis] for axis in "MNK")
    plain = call.dtype == torch.float32 and call.arguments["precision"] == "ieee"
    outputs = 1 if call.arguments["activation"] == "none" else 2
    bias = 0 if call.arguments["bias"] is None else n
    size = call.arguments["x"].element_size()
    return Cost(
        bytes=(m * k + k * n + outputs * m * n + bias) * size, flops=2 * m * n * k, unit="fma" if plain else "tensor"
    )


def _case(x: str, n: int, more: str = "", bias: bool = True, **options: Any) -> Case:
    given = f" bias={n}" if bias else ""
    return Case(f"x={x} weight={n}x{x.split('x')[-1]}{given} {more}".strip(), **options)


SPEC = OpSpec(
    name="linear",
    version=1,
    family="Products",
    summary="Product with a weight, a bias and an activation.",
    math="y = activation(z), z = x @ weight^T + bias, accumulated in fp32, rounded once; gelu by erf: z * Phi(z)",
    inputs=(
        Tensor("x", "M K | ... K", doc="a row, or rows of any rank; leading axes are taken as one"),
        Tensor("weight", "N K", like="x"),
        Tensor("bias", "N", like="x", optional=True),
        Scalar(
            "activation",
            str,
            "none",
            choices=("none", "gelu", "silu", "relu"),
            trials=("silu", "relu"),
            doc="of the sums; gelu is the exact one, as that operator without arguments",
        ),
        matmul.PRECISION,
    ),
    outputs=(
        Output("y", like="x", dims=shape),
        Output("z", like="x", dims=shape_z, saved=True, doc="the argument of the activation; [0] without one"),
    ),
    derive=rows,
    reference=reference,
    arithmetics=matmul.SPEC.arithmetics,
    error=(
        ErrorModel(magnitude=magnitude, terms=lambda axes: axes["K"] + 1, intermediate=rounded, flushes=True),
        ErrorModel(magnitude=magnitude_z, terms=lambda axes: axes["K"] + 1, flushes=True),
    ),
    exact=exact,
    special=SpecialValues(
        undefined={
            "largest fp32": "rounded to tf32 it is infinite",
            "largest bf16": "sums in fp32 overflow on the way, to either infinity, and an activation makes 0 of one",
        }
    ),
    cases=(
        _case("64x32", 48, "activation=gelu", tier="smoke"),
        _case("1x1", 1),
        _case("2x3x40", 24, "activation=silu"),
        _case("33x17", 45, bias=False),
        _case("65", 40, "activation=relu"),
        _case("130x24", 40, "activation=gelu"),
        _case("72x40", 24),
        _case("72x40", 72, "activation=silu", bias=False),
        _case("16x2048", 24, "activation=gelu", dtypes=(torch.bfloat16,)),  # K is split
        _case("72x40", 40, "activation=gelu precision=tf32", dtypes=matmul.FP32),
        _case("130x264", 24, "activation=silu", dtypes=(torch.bfloat16,)),  # rows divided evenly among tiles of y^T
        _case("2x2049", 65, dtypes=(torch.float16,)),  # a long K whose lines begin anywhere
        _case("3x384", 24, dtypes=matmul.FP32),
        _case("0x8", 8),
        _case("8x0", 24, "activation=relu"),
        _case("24x136", 40, inputs="positive"),
        _case("24x40", 24, "activation=gelu", inputs="cancel"),
        _case("513x1025", 257, "activation=gelu", tier="full"),
        _case("4x256x4096", 512, "activation=silu", inputs="positive", tier="full"),
        _case("1024x1024", 1024, "activation=relu precision=tf32", dtypes=matmul.FP32, tier="full"),
        _case("16x16384", 136, "activation=gelu", tier="full"),
        _case("4096x64", 4096, "activation=gelu", tier="full"),
    ),
    workloads=(
        _case("8192x5120", 5120, "activation=gelu", dtypes=matmul.HALVES),
        _case("4096x4096", 14336, "activation=gelu", dtypes=matmul.HALVES),
        _case("4096x4096", 4096, dtypes=matmul.HALVES),
        _case("16x4096", 14336, "activation=silu", dtypes=matmul.HALVES),
    ),
    cost=cost,
    gradient=Composed(("x", "weight", "bias"), products, saves=("z",)),
)
