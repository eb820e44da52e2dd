"""Gradient of cross_entropy with respect to the logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from kernelmux.registry.cases import Case
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.ops import cross_entropy
from kernelmux.registry.spec import (
    BatchInvariant,
    Call,
    Computed,
    Constraint,
    NoExact,
    NoGradient,
    OpSpec,
    Output,
    SpecialValues,
    Tensor,
)


def reference(
    grad_loss: torch.Tensor,
    logits: torch.Tensor,
    target: torch.Tensor,
    lse: torch.Tensor,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
) -> torch.Tensor:
    """float64 autograd of the forward reference, row by row, times the gradient of each row's loss; lse has no part in it.

    Rows that are ignored are 0, whatever stands in them, and rows whose target is no class NaN.
    """
    counts, wrong, _ = cross_entropy.chosen(logits, target, ignore_index)
    leaf = logits.detach().requires_grad_()
    with torch.enable_grad():
        rows = cross_entropy.losses(leaf, target, ignore_index, label_smoothing)
        (grad,) = torch.autograd.grad(rows.sum(), leaf)
    grad = grad * row_gradient(grad_loss, counts, reduction)
    return torch.where(counts[:, None], grad.masked_fill(wrong[:, None], torch.nan), 0)


def row_gradient(grad_loss: torch.Tensor, counts: torch.Tensor, reduction: str) -> torch.Tensor:
    """The gradient of the loss of each row [M 1], or of every one [1]."""
    if reduction == "none":
        return grad_loss[:, None]
    return grad_loss / counts.sum() if reduction == "mean" else grad_loss


def scale(grad_loss: torch.Tensor, target: torch.Tensor, ignore_index: int, reduction: str) -> torch.Tensor:
    """|gradient| of the loss of each row [M 1]; 0 for rows that are ignored."""
    counts = target != ignore_index
    return torch.where(counts[:, None], row_gradient(grad_loss, counts, reduction).abs(), 0)


def magnitude(
    grad_loss: torch.Tensor,
    logits: torch.Tensor,
    target: torch.Tensor,
    lse: torch.Tensor,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
) -> torch.Tensor:
    """|g| * (p + (1 - s) at the target + s / V)."""
    _, _, safe = cross_entropy.chosen(logits, target, ignore_index)
    p = torch.exp(logits - cross_entropy.log_sum(logits)[:, None])
    p = p + label_smoothing / logits.shape[-1]
    p = p.scatter_add(-1, safe[:, None], torch.full_like(p[:, :1], 1 - label_smoothing))
    return scale(grad_loss, target, ignore_index, reduction) * p


def amplified(
    grad_loss: torch.Tensor,
    logits: torch.Tensor,
    target: torch.Tensor,
    lse: torch.Tensor,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
) -> torch.Tensor:
    """p = exp(x - lse): lse is a number of fp32, and so is the difference. A distance of infinity weighs nothing."""
    exact = cross_entropy.log_sum(logits)[:, None]
    p = torch.exp(logits - exact) * (exact.abs() + (logits - exact).abs())
    return scale(grad_loss, target, ignore_index, reduction) * p.nan_to_num(nan=0.0)


def cost(call: Call) -> Cost:
    logits, rows = call.arguments["logits"], call.axes["M"]
    return Cost(bytes=2 * logits.nbytes + 12 * rows + call.arguments["grad_loss"].nbytes, flops=4 * logits.numel())


def _case(logits: str, more: str = "", **options: Any) -> Case:
    m = logits.split("x")[0]
    grad = m if "reduction=none" in more else "scalar"
    return Case(f"grad_loss={grad} logits={logits} target={m} lse={m} {more}".strip(), **options)


SINGLE = (torch.float32,)
SAME = "as in the forward call"

SPEC = OpSpec(
    name="cross_entropy_backward",
    version=1,
    family="Losses",
    summary="Gradient of cross_entropy.",
    math="grad = g * (exp(x - lse) - (1 - s) * (1 at target) - s / V); g = grad_loss, / rows that count for mean",
    inputs=(
        Tensor("grad_loss", "| M", dtypes=SINGLE, doc="gradient of the loss: [M] for reduction none, else one number"),
        Tensor("logits", "M V", doc=SAME),
        replace(cross_entropy.TARGET, doc=f"{SAME}; one that is no class gives a row of NaN"),
        Tensor(
            "lse",
            "M",
            dtypes=SINGLE,
            domain=Computed(lambda arguments: cross_entropy.log_sum(arguments["logits"])),
            doc="what the forward call saved",
        ),
        replace(cross_entropy.IGNORE, doc=SAME),
        replace(cross_entropy.SMOOTHING, doc=SAME),
        replace(cross_entropy.REDUCTION, doc=SAME),
    ),
    outputs=(Output("grad_logits", like="logits"),),
    special=SpecialValues(undefined=cross_entropy.OVERFLOW),
    constraints=(
        cross_entropy.CLASSES,
        Constraint(
            "grad_loss of the shape of the loss, [M] if reduction is none and else a single number",
            lambda v: v["grad_loss"].dim() == (v["reduction"] == "none"),
        ),
    ),
    reference=reference,
    error=ErrorModel(magnitude=magnitude, amplified=amplified, flushes=True),
    exact=NoExact("the exponential is transcendental: rows of one class alone give the same bits everywhere"),
    cases=(
        *cross_entropy.common_cases(_case),
        _case("9x515", "label_smoothing=0.3 reduction=none", inputs="wide"),
        _case("3x700", "reduction=sum", inputs="masked"),
        _case("70000x33", "reduction=sum", tier="full"),
        _case("128x128256", "reduction=none", tier="full"),
        _case("64x50257", "label_smoothing=0.1", tier="full"),
        _case("3x262147", "reduction=none", tier="full"),
    ),
    workloads=(
        # The rows of a sum are independent, so that a part of them can be checked.
        _case("8192x128256", "reduction=sum", dtypes=(torch.bfloat16,)),
        _case("4096x50257", "reduction=sum"),
    ),
    cost=cost,
    gradient=NoGradient("a gradient itself: torch_ref differentiates it"),
    properties=(BatchInvariant(("M",)),),
)
