"""Cross entropy of logits with one target class per row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernelmux.registry.cases import Case
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import (
    BatchInvariant,
    Call,
    Constraint,
    Gradient,
    Index,
    NoExact,
    OpSpec,
    Output,
    Scalar,
    SpecialValues,
    Tensor,
)

Pair = tuple[torch.Tensor, torch.Tensor]


def log_sum(logits: torch.Tensor) -> torch.Tensor:
    """log(sum(exp(logits))) of each row; NaN where one is infinite, or all are -inf."""
    m = logits.amax(-1, keepdim=True)
    return m[..., 0] + torch.exp(logits - m).sum(-1).log()


def chosen(logits: torch.Tensor, target: torch.Tensor, ignore_index: int) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Rows that count, rows whose target is no class, and targets with class 0 in place of these and of ignored ones."""
    counts = target != ignore_index
    wrong = counts & ((target < 0) | (target >= logits.shape[-1]))
    return counts, wrong, target.masked_fill(~counts | wrong, 0)


def losses(logits: torch.Tensor, target: torch.Tensor, ignore_index: int, smoothing: float) -> torch.Tensor:
    """The loss of each row [M]: 0 if it is ignored, NaN if its target is no class."""
    counts, wrong, safe = chosen(logits, target, ignore_index)
    found = log_sum(logits) - (1 - smoothing) * logits.gather(-1, safe[:, None])[:, 0]
    if smoothing:
        found = found - smoothing * logits.mean(-1)
    return torch.where(counts, torch.where(wrong, torch.nan, found), 0)


def reduced(x: torch.Tensor, counts: torch.Tensor, reduction: str) -> torch.Tensor:
    """The rows themselves, their sum, or their mean over those that count."""
    if reduction == "none":
        return x
    return x.sum() / counts.sum() if reduction == "mean" else x.sum()


def reference(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> Pair:
    rows = losses(logits, target, ignore_index, label_smoothing)
    return reduced(rows, target != ignore_index, reduction), log_sum(logits)


def magnitude_lse(logits: torch.Tensor, *rest: Any) -> torch.Tensor:
    """The logarithm of the sum, off by its relative error; the rounding of its argument, weighed by p; the maximum."""
    m = logits.amax(-1, keepdim=True)
    distance = (logits - m).abs()
    e = torch.exp(-distance)
    share = (e * distance).nan_to_num(nan=0.0).sum(-1) / e.sum(-1)
    return log_sum(logits).abs() + m[..., 0].abs() + 1 + share


def magnitude(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> torch.Tensor:
    counts, _, safe = chosen(logits, target, ignore_index)
    rows = magnitude_lse(logits) + logits.gather(-1, safe[:, None])[:, 0].abs()
    if label_smoothing:
        rows = rows + label_smoothing * logits.abs().mean(-1)
    return reduced(torch.where(counts, rows, 0), counts, reduction)


def shape(call: Call) -> tuple[int, ...]:
    return (call.axes["M"],) if call.arguments["reduction"] == "none" else ()


def cost(call: Call) -> Cost:
    logits = call.arguments["logits"]
    rows = call.axes["M"]
    written = 4 * (rows + torch.Size(shape(call)).numel())
    return Cost(bytes=logits.nbytes + 8 * rows + written, flops=4 * logits.numel())


IGNORE = Scalar(
    "ignore_index",
    int,
    -100,
    range=(-(2**63), 2**63 - 1),
    trials=(-1, 0, 2),
    doc="rows with this target count for nothing; it may be a class",
)
SMOOTHING = Scalar(
    "label_smoothing",
    float,
    0.0,
    range=(0.0, 1.0),
    trials=(0.0, 0.1, 0.3, 1.0),
    doc="the share of the target that is spread evenly over all classes",
)
REDUCTION = Scalar(
    "reduction",
    str,
    "mean",
    choices=("mean", "sum", "none"),
    trials=("sum", "none"),
    doc="mean is over the rows that count, NaN if none does; none gives the loss of each row",
)
CLASSES = Constraint("V >= 1", lambda v: v["V"] >= 1)
TARGET = Tensor(
    "target",
    "M",
    dtypes=(torch.int64,),
    domain=Index("V", ("ignore_index",)),
    doc="a class for each row; one that is none gives NaN in the loss of its row, which counts, and in the gradient of that"
    " row; with KERNELMUX_CHECK=1 an ArgumentError",
)


OVERFLOW = dict.fromkeys(("largest fp32", "largest bf16"), "the sum of a row, or a distance in it, overflows fp32")


def _case(logits: str, more: str = "", **options: Any) -> Case:
    return Case(f"logits={logits} target={logits.split('x')[0]} {more}".strip(), **options)


def common_cases(case: Callable[..., Case]) -> tuple[Case, ...]:
    """Those of the loss and of its gradient: every reduction, few classes and many, no row, values that cancel."""
    return (
        case("8x100", tier="smoke"),
        case("1x1"),
        case("1x17", "reduction=none"),
        case("37x1000", "reduction=none label_smoothing=0.1"),
        case("5x4099"),
        case("33x33", "ignore_index=2 reduction=sum"),
        case("130x5", "label_smoothing=1.0"),
        case("0x16"),
        case("0x16", "reduction=none"),
        case("9x515", "reduction=none", inputs="offset"),
    )


SPEC = OpSpec(
    name="cross_entropy",
    version=1,
    family="Losses",
    summary="Cross entropy of logits with a target class per row.",
    math="lse = log(sum(exp(x))); loss of a row = lse - (1 - s) * x[target] - s * mean(x), s = label_smoothing",
    sources=("Szegedy et al., Rethinking the Inception architecture, 2015 (label smoothing)",),
    inputs=(Tensor("logits", "M V", doc="a row of numbers, one per class"), TARGET, IGNORE, SMOOTHING, REDUCTION),
    outputs=(
        Output("loss", like="logits", dims=shape, dtype=torch.float32, doc="[M] for reduction none, else one number"),
        Output(
            "lse", like="logits", dims="M", dtype=torch.float32, saved=True, doc="log(sum(exp(logits))) of each row"
        ),
    ),
    constraints=(CLASSES,),
    special=SpecialValues(undefined=OVERFLOW),
    reference=reference,
    arithmetics=("fp32", "fp32_sequential"),
    error=(
        ErrorModel(magnitude=magnitude, terms=lambda axes: axes["V"] + axes["M"], flushes=True),
        ErrorModel(magnitude=magnitude_lse, terms=lambda axes: axes["V"], flushes=True),
    ),
    exact=NoExact("the logarithm of a sum of exponentials is a number of no format"),
    cases=(
        *common_cases(_case),
        _case("9x515", "label_smoothing=0.3", inputs="wide"),
        _case("3x700", inputs="masked"),
        _case("9x515", "reduction=none", inputs="cancel"),
        _case("16400x3"),  # the losses of so many rows are added in two steps
        _case("3x33000", "label_smoothing=0.1"),  # so few rows, so long, are shared
        _case("5x20011", "reduction=none"),
        _case("70000x33", "reduction=none", tier="full"),
        _case("128x128256", "reduction=none", inputs="wide", tier="full"),
        _case("64x50257", "reduction=none label_smoothing=0.1", inputs="wide", tier="full"),
        _case("24x131075", "reduction=none", inputs="wide", tier="full"),
    ),
    workloads=(_case("8192x128256", dtypes=(torch.bfloat16,)), _case("4096x50257")),
    cost=cost,
    gradient=Gradient("cross_entropy_backward", wrt=("logits",), saves=("lse",)),
    properties=(BatchInvariant(("M",)),),
)
