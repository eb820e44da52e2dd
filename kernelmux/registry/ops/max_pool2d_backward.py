"""Gradient of max_pool2d with respect to the images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import torch

from kernelmux.registry.cases import Case, exact_range, integers
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.ops import max_pool2d
from kernelmux.registry.spec import Call, Computed, Constraint, NoGradient, OpSpec, Output, Scalar, Tensor
from kernelmux.registry.spec.sliding_windows import Pair, pair, windows


def reference(
    grad_out: torch.Tensor, index: torch.Tensor, size: Pair, kernel: Pair, stride: Pair, padding: Pair
) -> torch.Tensor:
    """Each gradient is added where its index says; an index outside of its window adds nothing."""
    positions, inside = max_pool2d.elements(size, kernel, stride, padding, grad_out.device)
    at = index.long()
    own = (inside & (positions == at[..., None])).any(-1)
    made = torch.zeros((*grad_out.shape[:-2], prod(size)), dtype=grad_out.dtype, device=grad_out.device)
    made.scatter_add_(-1, torch.where(own, at, 0).flatten(-2), torch.where(own, grad_out, 0).flatten(-2))
    return made.view(*grad_out.shape[:-2], *size)


def magnitude(grad_out: torch.Tensor, *arguments: Any) -> torch.Tensor:
    return reference(grad_out.abs(), *arguments)


def derive(arguments: Mapping[str, Any], axes: Mapping[str, Any]) -> dict[str, int]:
    """The axes of the forward call, and T: windows that may share an element."""
    own = dict(zip("HW", arguments["size"], strict=True))
    made = max_pool2d.derive(arguments, {**axes, **own})
    known = {f"{name} of max_pool2d": made.pop(name) for name in ("OH", "OW")}
    shared = zip(arguments["kernel"], arguments["stride"], strict=True)
    return {**own, **made, **known, "T": prod(-(-k // s) for k, s in shared)}


def saved(arguments: Mapping[str, Any]) -> torch.Tensor:
    """What a forward call could have saved: the index of images of noise."""
    shape = (*arguments["grad_out"].shape[:-2], *arguments["size"])
    noise = torch.rand(shape, generator=torch.Generator().manual_seed(prod(shape)), device="cpu")
    if not noise.numel():
        return torch.zeros(arguments["grad_out"].shape, device="cpu")
    options = (arguments[name] for name in ("kernel", "stride", "padding"))
    found: torch.Tensor = torch.nn.functional.max_pool2d(noise, *options, return_indices=True)[1]
    return found


def exact(case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, torch.Tensor] | None:
    """Integers whose sums the dtype has."""
    call = case.spec.hypothetical(case, dtype) if case.spec else None
    if call is None or not (largest := min(exact_range(call.axes["T"], dtype), 1000)):
        return None
    grad = integers(case.shapes["grad_out"], dtype, rng, largest)
    return {"grad_out": grad, "index": saved({**call.arguments, "grad_out": grad}).to(torch.int32)}


def cost(call: Call) -> Cost:
    grad, axes = call.arguments["grad_out"], call.axes
    made = axes["N"] * axes["C"] * axes["H"] * axes["W"] * grad.element_size()
    return Cost(bytes=grad.numel() * (grad.element_size() + 4) + made, flops=grad.numel())


def _case(shape: str, size: str, more: str, **options: Any) -> Case:
    return Case(f"grad_out={shape} index={shape} size={size} {more}", **options)


def fitting(shapes: Mapping[str, tuple[int, ...]], scalars: Mapping[str, Any]) -> Pair:
    """H and W of the largest images with so many windows."""
    kernel = pair(scalars["kernel"])
    over = windows(kernel, kernel if scalars["stride"] is None else scalars["stride"], scalars["padding"] or 0, 1)
    h, w = (o.length(n, o.stride - 1) for o, n in zip(over, shapes["grad_out"][-2:], strict=True))
    return h, w


SAME = "as in the forward call"
SIZES = Scalar(
    "size", int, range=(1, 2**30), length=2, trials=(8, (9, 12)), fit=fitting, extent=True, doc="H and W of the images"
)

SPEC = OpSpec(
    name="max_pool2d_backward",
    version=1,
    family="Images",
    summary="Gradient of max_pool2d, by the index that the forward call saved; sums in a fixed order, without atomics.",
    math="grad_x[h, w] = sum of grad_out over the windows that hold (h, w) and whose index is h * W + w",
    sources=max_pool2d.SOURCES,
    inputs=(
        Tensor("grad_out", "N C OH OW | C OH OW", doc="gradient of y"),
        Tensor(
            "index",
            "N C OH OW | C OH OW",
            dtypes=(torch.int32,),
            domain=Computed(saved),
            doc="what the forward call saved; one outside of its window adds nothing",
        ),
        SIZES,
        replace(max_pool2d.KERNEL, doc=SAME),
        replace(max_pool2d.STRIDE, doc=SAME),
        replace(max_pool2d.PADDING, doc=SAME),
    ),
    outputs=(
        Output(
            "grad_x",
            like="grad_out",
            dims=lambda c: (*c.arguments["grad_out"].shape[:-2], *c.arguments["size"]),
            order="index",
        ),
    ),
    normalise=max_pool2d.normalise,
    derive=derive,
    constraints=(
        Constraint("index of the shape of grad_out", lambda v: v["index"].shape == v["grad_out"].shape),
        Constraint("C, OH and OW of at least 1", lambda v: v["C"] >= 1 and v["OH"] >= 1 and v["OW"] >= 1),
        *max_pool2d.LIMITS,
        Constraint(
            "OH and OW that size, kernel, stride and padding give",
            lambda v: all(v[name] == v[f"{name} of max_pool2d"] >= 1 for name in ("OH", "OW")),
        ),
    ),
    reference=reference,
    arithmetics=("fp32", "fp32_sequential"),
    error=ErrorModel(magnitude=magnitude, terms=lambda axes: axes["T"]),
    exact=exact,
    cases=(
        _case("2x3x5x6", "9x11", "kernel=3 stride=2 padding=1", tier="smoke"),
        _case("3x4x3", "8x6", "kernel=2", tier="smoke"),
        _case("1x16x17x20", "33x40", "kernel=3 stride=2 padding=1", dtypes=(torch.bfloat16,)),  # as in ResNet
        _case("2x5x7x36", "13x37", "kernel=3x2 stride=2x1 padding=1x0"),
        _case("1x2x1x1", "3x2", "kernel=7 stride=3 padding=3", dtypes=(torch.float32, torch.float16)),
        _case("1x2x3x4", "12x20", "kernel=2x3 stride=4x5", dtypes=(torch.float16,)),  # elements of no window
        _case("2x4x9x70", "9x70", "kernel=5 stride=1 padding=2", dtypes=(torch.float32, torch.bfloat16)),
        _case("2x3x1x1", "17x19", "kernel=17x19", dtypes=(torch.float16,)),
        _case("0x3x4x4", "8x8", "kernel=2"),
        _case("1x1x1x350", "2x700", "kernel=2x3 stride=2x2 padding=0x1", dtypes=(torch.float32,)),
        _case("2x8x3x3", "5x6", "kernel=3 stride=2 padding=1 channels-last"),
        _case("1x4x9x10", "9x10", "kernel=7 stride=1 padding=3 channels-last", dtypes=(torch.float16,)),
        _case("1x2x13x100", "40x301", "kernel=3 stride=3", dtypes=(torch.float32,)),  # a plane beyond a block
        _case("1x1x2050x2050", "4100x4100", "kernel=2", dtypes=(torch.bfloat16,), tier="full"),  # as in max_pool2d
        _case("1x2x3x10000", "5x20000", "kernel=3 stride=2 padding=1", tier="full"),
        _case("8x64x28x28", "56x56", "kernel=3 stride=2 padding=1", tier="full"),
        _case("3x17x27x27", "55x55", "kernel=3 stride=2", tier="full"),
        _case("2x8x300x300", "300x300", "kernel=13 stride=1 padding=6", tier="full"),
    ),
    workloads=(
        _case("32x64x56x56", "112x112", "kernel=3 stride=2 padding=1"),
        _case("32x128x56x56", "112x112", "kernel=2", dtypes=(torch.bfloat16,)),
        _case("128x64x27x27", "55x55", "kernel=3 stride=2", dtypes=(torch.bfloat16,)),
        _case("32x256x40x40", "40x40", "kernel=5 stride=1 padding=2", dtypes=(torch.float16,)),
    ),
    cost=cost,
    gradient=NoGradient("a gradient itself: torch_ref differentiates it"),
)
