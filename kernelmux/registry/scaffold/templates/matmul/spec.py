"""newop: a product of two matrices."""

from __future__ import annotations

import torch

from kernelmux.registry.cases import Case, exact_range, integers
from kernelmux.registry.cost import Cost
from kernelmux.registry.dtypes import FLOATS
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import Call, Composed, OpSpec, Output, SpecialValues, Tensor


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.einsum("mk,kn->mn", a, b)  # TODO(newop): slow and obvious; evaluated in float64


def magnitude(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The sum on absolute values: what roundings in fp32 are relative to."""
    return reference(a.abs(), b.abs())  # TODO(newop): of every term that is added


def exact(case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, torch.Tensor] | None:
    """Integers whose products add up exactly in fp32, to numbers of the dtype."""
    # TODO(newop): or, below, exact=NoExact("why there are none")
    largest = exact_range(case.shapes["a"][-1], dtype, products=True)
    return {name: integers(shape, dtype, rng, largest) for name, shape in case.shapes.items()} if largest else None


def cost(call: Call) -> Cost:
    m, n, k = (call.axes[name] for name in "MNK")
    size = (m * k + k * n + m * n) * call.arguments["a"].element_size()
    flops = 2 * m * n * k  # TODO(newop): and what is computed beside the product
    return Cost(bytes=size, flops=flops, unit="fma" if call.dtype == torch.float32 else "tensor")


SPEC = OpSpec(
    name="newop",
    version=1,
    family="Products",
    summary="newop: a product of two matrices.",  # TODO(newop): one sentence
    math="c = a @ b, accumulated in fp32, rounded once",  # TODO(newop): the formula, for readers
    inputs=(  # TODO(newop): the axes of both, and further tensors and numbers
        Tensor("a", "M K", dtypes=FLOATS, doc="any strides"),
        Tensor("b", "K N", like="a", doc="any strides"),
    ),
    outputs=(Output("c", like="a", dims="M N"),),
    reference=reference,
    arithmetics=("fp32", "fp32_sequential", "mma"),
    error=ErrorModel(magnitude=magnitude, terms=lambda axes: axes["K"], flushes=True),
    exact=exact,
    # TODO(newop): for what no kernel in fp32 can give, as undefined={"largest": "sums overflow"}
    special=SpecialValues(),
    cases=(  # TODO(newop): with the axes that you gave them
        Case("a=64x32 b=32x48", tier="smoke"),
        Case("a=1x1 b=1x1"),
        Case("a=1x65 b=65x1"),
        Case("a=33x17 b=17x45"),
        Case("a=64x63 b=63x64"),
        Case("a=48x48 b=48x48"),
        Case("a=130x18 b=18x3"),
        Case("a=130x70 b=70x100"),
        Case("a=16x520 b=520x24"),
        Case("a=0x8 b=8x8"),
        Case("a=8x8 b=8x0"),
        Case("a=8x0 b=0x24"),
        Case("a=48x264 b=264x40", inputs="positive"),
        Case("a=48x264 b=264x40", inputs="cancel"),
        Case("a=513x1025 b=1025x257", tier="full"),
        Case("a=16x16384 b=16384x136", tier="full"),
        Case("a=70000x33 b=33x65", tier="full"),
    ),
    workloads=(Case("a=4096x4096 b=4096x4096"), Case("a=1000x3000 b=3000x5000")),
    cost=cost,
    autocast="lower",
    # TODO(newop): of values v["a"], v["b"] and v["c"]; or NoGradient("why there is none")
    gradient=Composed(
        ("a", "b"),
        lambda kx, v, g: {"a": lambda: kx.matmul(g["c"], v["b"].mT), "b": lambda: kx.matmul(v["a"].mT, g["c"])},
    ),
)
