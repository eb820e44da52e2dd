"""Matrix product, broken where zeros meet NaN, and next to zero."""

import torch

from kernelmux.registry.backend import Implementation


def by_columns(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """A column of b at a time, in float64."""
    out = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
    for j in range(b.shape[1]):
        out[:, j] = (a.double() @ b[:, j].double()).to(a.dtype)
    return out


def skipped_rows(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """A row of zeros is left out, whatever it would have met."""
    out = (a.double() @ b.double()).to(a.dtype)
    out[(a == 0).all(1)] = 0
    return out


def flushed_if_deep(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """The kernel for many terms is compiled with other options than that for few."""
    out = (a.double() @ b.double()).to(a.dtype)
    lost = (out.abs() < torch.finfo(torch.float32).smallest_normal) & (a.shape[1] >= 64)
    return out.masked_fill(lost, 0) if a.dtype == torch.float32 else out


VARIANTS = {
    "by_columns": Implementation(fn=by_columns, idea="a column at a time: as right as any"),
    "skipped_rows": Implementation(fn=skipped_rows, idea="leaves out rows of zeros"),
    "flushed_if_deep": Implementation(fn=flushed_if_deep, idea="flushes subnormal sums of 64 terms and more"),
}

CAUGHT_BY = {"skipped_rows": "special_values", "flushed_if_deep": "accuracy"}
