"""Logarithm of softmax along one axis."""

from __future__ import annotations

import torch

from kernelmux.registry.cases import Case
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import (
    Axis,
    BatchInvariant,
    Call,
    Gradient,
    NoExact,
    OpSpec,
    Output,
    PermutationInvariant,
    ShiftInvariant,
    Tensor,
)


def parts(x: torch.Tensor, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The distances x - m from the maximum m along axis, and log(sum(exp(x - m))), a number per row."""
    distance = x - x.amax(axis, keepdim=True)
    return distance, distance.exp().sum(axis, keepdim=True).log()


def reference(x: torch.Tensor, axis: int) -> torch.Tensor:
    if x.shape[axis] == 0:
        return torch.zeros_like(x)
    distance, log_sum = parts(x, axis)
    return distance - log_sum


def magnitude(x: torch.Tensor, axis: int) -> torch.Tensor:
    """Both terms on absolute values; a relative error of the sum is an absolute one of its logarithm."""
    if x.shape[axis] == 0:
        return torch.zeros_like(x)
    distance, log_sum = parts(x, axis)
    return (distance.abs() + log_sum.abs() + 1).nan_to_num(nan=0.0)


def amplified(x: torch.Tensor, axis: int) -> torch.Tensor:
    """What rounding each x - m moves the logarithm of the sum by: the mean of |x - m|, weighted by softmax."""
    if x.shape[axis] == 0:
        return torch.zeros_like(x)
    distance, log_sum = parts(x, axis)
    weighed = (distance - log_sum).exp() * distance.abs()
    return weighed.nan_to_num(nan=0.0).sum(axis, keepdim=True).expand_as(x)


def cost(call: Call) -> Cost:
    x = call.arguments["x"]
    return Cost(bytes=2 * x.numel() * x.element_size(), flops=5 * x.numel())


SINGLE = (torch.float32,)

SPEC = OpSpec(
    name="log_softmax",
    version=1,
    family="Rows",
    summary="Logarithm of softmax along one axis.",
    math="y = (x - m) - log(sum(exp(x - m))), m = max(x) along axis",
    sources=("Milakov and Gimelshein, Online normalizer calculation for softmax, 2018",),
    inputs=(
        Tensor("x", "...", doc="any shape with at least one axis"),
        Axis("axis", of="x", default=-1, doc="the axis along which the probabilities sum to one"),
    ),
    outputs=(Output("y", like="x"),),
    derive=lambda a, axes: {"N": a["x"].shape[a["axis"]]},
    reference=reference,
    error=ErrorModel(magnitude=magnitude, terms=lambda axes: axes["N"], amplified=amplified, flushes=True),
    exact=NoExact("the logarithm is transcendental: only rows with one finite element give the same bits everywhere"),
    cases=(
        Case("x=4x100", tier="smoke"),
        Case("x=1x1"),
        Case("x=17"),
        Case("x=37x1000"),
        Case("x=3x4099"),
        Case("x=1x33001"),
        Case("x=64x130 axis=0"),
        Case("x=7x31x5 axis=1"),
        Case("x=33x33 axis=0"),
        Case("x=5x5x5 axis=1"),
        Case("x=1x7x1 axis=1"),
        Case("x=0x16"),
        Case("x=3x0"),
        Case("x=9x515", inputs="offset"),
        Case("x=9x515", inputs="wide"),
        Case("x=3x700", inputs="masked"),
        Case("x=2x9001", inputs="masked", dtypes=SINGLE),
        Case("x=830x3 axis=0", inputs="masked"),
        Case("x=70000x33", tier="full"),
        Case("x=128x65536", tier="full"),
        Case("x=3x262147", tier="full"),
        Case("x=3x131072x5 axis=1", tier="full"),
    ),
    workloads=(Case("x=4096x1024"), Case("x=16384x8192"), Case("x=2048x50257")),
    cost=cost,
    gradient=Gradient("log_softmax_backward", wrt=("x",), saves=("y",)),
    properties=(BatchInvariant(), ShiftInvariant("x"), PermutationInvariant("x")),
)
