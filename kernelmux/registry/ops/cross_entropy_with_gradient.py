"""Cross entropy together with its gradient, as training with many classes wants it: the logits are read once for both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from kernelmux.registry.cases import Case
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.ops import cross_entropy, cross_entropy_backward
from kernelmux.registry.ops.cross_entropy import Pair
from kernelmux.registry.spec import BatchInvariant, Call, Composed, NoExact, OpSpec, Output, SpecialValues, Tensor

Arguments = tuple[torch.Tensor, torch.Tensor, int, float, str]


def ones(logits: torch.Tensor, reduction: str) -> torch.Tensor:
    """The gradient of the loss: 1 for every number of it."""
    return logits.new_ones(logits.shape[:1] if reduction == "none" else ())


def backward_arguments(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> tuple[Any, ...]:
    """Those of cross_entropy_backward for a gradient of 1; its reference makes no use of lse."""
    lse = cross_entropy.log_sum(logits)
    return ones(logits, reduction), logits, target, lse, ignore_index, label_smoothing, reduction


def reference(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> Pair:
    arguments = (logits, target, ignore_index, label_smoothing, reduction)
    return cross_entropy.reference(*arguments)[0], cross_entropy_backward.reference(*backward_arguments(*arguments))


def magnitude(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> torch.Tensor:
    """That of the gradient, and what exp makes of the rounding of its argument: p * |x - max x|."""
    arguments = backward_arguments(logits, target, ignore_index, label_smoothing, reduction)
    distance = (logits - logits.amax(-1, keepdim=True)).abs()
    p = torch.exp(logits - cross_entropy.log_sum(logits)[:, None]) * distance
    scale = cross_entropy_backward.scale(arguments[0], target, ignore_index, reduction)
    return cross_entropy_backward.magnitude(*arguments) + scale * p.nan_to_num(nan=0.0)


def amplified(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> torch.Tensor:
    """p = exp(x - lse), where lse is rounded; an implementation that subtracts the maximum needs none of it."""
    return cross_entropy_backward.amplified(
        *backward_arguments(logits, target, ignore_index, label_smoothing, reduction)
    )


def scaled(grad_logits: torch.Tensor, grad_loss: torch.Tensor) -> torch.Tensor:
    """grad_logits for another gradient of the loss than 1: one number, or one of each row."""
    return (grad_logits * (grad_loss[:, None] if grad_loss.dim() else grad_loss)).to(grad_logits.dtype)


def cost(call: Call) -> Cost:
    logits, rows = call.arguments["logits"], call.axes["M"]
    written = 4 * torch.Size(cross_entropy.shape(call)).numel()
    return Cost(bytes=2 * logits.nbytes + 8 * rows + written, flops=8 * logits.numel())


def _case(logits: str, more: str = "", **options: Any) -> Case:
    return Case(f"logits={logits} target={logits.split('x')[0]} {more}".strip(), **options)


SPEC = OpSpec(
    name="cross_entropy_with_gradient",
    version=1,
    family="Losses",
    summary="Cross entropy of logits with a target class per row, and its gradient.",
    math="loss as in cross_entropy; grad_logits = h * (exp(x - lse) - (1 - s) * (1 at target) - s / V),"
    " s = label_smoothing, h = 1 / rows that count for mean, else 1",
    sources=("Hsu et al., Liger kernel, 2024 (a loss that leaves the gradient of its logits)",),
    inputs=(
        Tensor("logits", "M V", doc="a row of numbers, one per class"),
        cross_entropy.TARGET,
        cross_entropy.IGNORE,
        cross_entropy.SMOOTHING,
        replace(
            cross_entropy.REDUCTION,
            doc="mean is over the rows that count, NaN if none does; none gives the loss of each row, and the gradient of"
            " each row is that of its own loss",
        ),
    ),
    outputs=(
        Output(
            "loss",
            like="logits",
            dims=cross_entropy.shape,
            dtype=torch.float32,
            doc="[M] for reduction none, else one number",
        ),
        Output("grad_logits", like="logits", doc="the gradient of the loss, as a gradient of 1 gives it"),
    ),
    constraints=(cross_entropy.CLASSES,),
    special=SpecialValues(undefined=cross_entropy.OVERFLOW),
    reference=reference,
    arithmetics=("fp32", "fp32_sequential"),
    error=(
        ErrorModel(magnitude=cross_entropy.magnitude, terms=lambda axes: axes["V"] + axes["M"], flushes=True),
        ErrorModel(magnitude=magnitude, terms=lambda axes: axes["V"], amplified=amplified, flushes=True),
    ),
    exact=NoExact("the exponential is transcendental: rows of one class alone give the same bits everywhere"),
    cases=(
        *cross_entropy.common_cases(_case),
        _case("9x515", "label_smoothing=0.3 reduction=none", inputs="wide"),
        _case("3x700", "reduction=sum", inputs="masked"),
        _case("9x515", "reduction=none", inputs="cancel"),
        _case("3x9001", "reduction=sum", inputs="masked"),
        _case("5x9001", "label_smoothing=0.3 reduction=none", inputs="wide"),
        _case("5x33001", "ignore_index=2"),
        _case("40x13", "reduction=none"),  # targets beside whole vectors
        _case("9x33096", "reduction=sum"),
        _case("1x150001", "reduction=sum", dtypes=(torch.float32,)),  # longer than what stays anywhere
        _case("5x70001", dtypes=(torch.float32,)),  # a row that does not count among such
        _case("1x400003", "reduction=sum", dtypes=(torch.float32,)),  # more than three pieces of a row for each lane
        _case("70000x33", "reduction=sum", tier="full"),
        _case("3000x2051", "reduction=none", dtypes=(torch.float32,), tier="full"),  # targets beside whole vectors
        _case("2x400003", "reduction=sum", dtypes=(torch.float32,), tier="full"),
        _case("300x128256", "label_smoothing=0.1", tier="full"),
        _case("64x50257", "reduction=none", inputs="wide", tier="full"),
        _case("300x50257", "reduction=sum", tier="full"),
        _case("3x262147", "reduction=none", tier="full"),
    ),
    workloads=(
        # The rows of a sum are independent, so that a part of them can be checked.
        _case("8192x128256", "reduction=sum", dtypes=(torch.bfloat16,)),
        _case("4096x50257", "reduction=sum"),
    ),
    cost=cost,
    gradient=Composed(
        ("logits",), lambda kx, v, g: {"logits": scaled(v["grad_logits"], g["loss"])}, constant=("grad_logits",)
    ),
    properties=(BatchInvariant(("M",)),),
)
