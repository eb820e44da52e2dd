"""A column of a pinned matrix, broken in single bits."""

import torch

from kernelmux.registry.backend import Implementation


def _sent(column: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A contiguous column where the result belongs."""
    column = column.clone(memory_format=torch.contiguous_format)
    return column.to("cuda") if torch.cuda.is_available() and x.is_pinned() else column


def row_by_row(x: torch.Tensor, column: int) -> torch.Tensor:
    out = torch.empty(x.shape[0], dtype=x.dtype, device="cpu")
    for i in range(x.shape[0]):
        out[i : i + 1].copy_(x[i, column : column + 1])
    return _sent(out, x)


def added_up(x: torch.Tensor, column: int) -> torch.Tensor:
    return _sent(torch.zeros(x.shape[0], dtype=x.dtype, device="cpu") + x[:, column], x)


def one_hot(x: torch.Tensor, column: int) -> torch.Tensor:
    """The product with a unit vector, as a gather on tensor cores; what is not finite is put back afterwards."""
    unit = torch.zeros(x.shape[1], dtype=torch.float64, device="cpu")
    unit[column] = 1
    finite = torch.where(x.isfinite(), x, 0).double() @ unit
    return _sent(torch.where(x[:, column].isfinite(), finite.to(x.dtype), x[:, column]), x)


def rounded_again(x: torch.Tensor, column: int) -> torch.Tensor:
    wide = torch.float32 if x.dtype != torch.float32 else torch.float64
    return _sent(x[:, column].to(wide).to(x.dtype), x)


VARIANTS = {
    "row_by_row": Implementation(fn=row_by_row, idea="an element at a time: slow and right"),
    "added_up": Implementation(fn=added_up, idea="adds the column to zeros"),
    "one_hot": Implementation(fn=one_hot, idea="multiplies by a unit vector"),
    "rounded_again": Implementation(fn=rounded_again, idea="passes through a wider format"),
}

CAUGHT_BY = {"added_up": "special_values", "one_hot": "special_values", "rounded_again": "special_values"}
