"""What the specs of gradients of norms share: of the rows [..., N], and sums over all rows [N]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernelmux.registry.cases import Case
from kernelmux.registry.numerics import ErrorModel

Tensors = tuple[torch.Tensor, ...]
Magnitude = Callable[..., torch.Tensor]


def over_rows(x: torch.Tensor) -> torch.Tensor:
    """The sum over every axis but the last: [..., N] -> [N]."""
    return x.sum(tuple(range(x.dim() - 1))) if x.dim() > 1 else x


def count_rows(axes: Any) -> int:
    """How many rows [..., N] has."""
    return torch.Size(axes["..."]).numel()


def row_error(magnitude: Magnitude) -> ErrorModel:
    """Of the gradient of the rows, which needs sums along a row."""
    return ErrorModel(magnitude=magnitude, terms=lambda axes: axes["N"], flushes=True)


def weight_error(magnitude: Magnitude) -> ErrorModel:
    """Of the gradient of the weight: each row adds what its own sums have scaled."""
    return ErrorModel(magnitude=magnitude, terms=lambda axes: axes["N"] + count_rows(axes), flushes=True)


def case_of(*inputs: str) -> Callable[..., Case]:
    """Makes cases in which the inputs have one shape, and the weight an element for each column.

    case_of("grad_out", "x")("4x128", "eps=0.0") is Case("grad_out=4x128 x=4x128 weight=128 eps=0.0").
    """

    def case(x: str, more: str = "", **options: Any) -> Case:
        shapes = " ".join(f"{name}={x}" for name in inputs)
        return Case(f"{shapes} weight={x.split('x')[-1]} {more}".strip(), **options)

    return case


def common_cases(case: Callable[..., Case]) -> tuple[Case, ...]:
    """Those of every norm: one row and many, one column and many, nothing at all, values that cancel."""
    return (
        case("4x128", tier="smoke"),
        case("17"),
        case("1x1"),
        case("37x1000"),
        case("130x33"),
        case("0x16"),
        case("3x0"),
        case("9x515", inputs="offset"),
        case("9x515", inputs="wide"),
        case("70000x33", tier="full"),
        case("128x16384", tier="full"),
        case("4096x8192", tier="full"),
    )
