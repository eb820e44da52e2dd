"""Matrix product, broken where zeros meet NaN, and next to zero."""

import torch

from kernelmux.registry.backend import Implementation


def by_columns(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """Columns of b in eight groups (of one where there are few), in float64."""
    groups = b.split(max(b.shape[-1] // 8, 1), dim=-1)
    return torch.cat([(a.double() @ group.double()).to(a.dtype) for group in groups], dim=-1)


def skipped_rows(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """A row of zeros is left out, whatever it would have met."""
    out = (a.double() @ b.double()).to(a.dtype)
    out[(a == 0).all(-1)] = 0
    return out


def flushed_if_deep(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """The kernel for many terms is compiled with other options than that for few."""
    out = (a.double() @ b.double()).to(a.dtype)
    lost = (out.abs() < torch.finfo(torch.float32).smallest_normal) & (a.shape[-1] >= 64)
    return out.masked_fill(lost, 0) if a.dtype == torch.float32 else out


VARIANTS = {
    "by_columns": Implementation(fn=by_columns, idea="some columns at a time: as right as any"),
    "skipped_rows": Implementation(fn=skipped_rows, idea="leaves out rows of zeros"),
    "flushed_if_deep": Implementation(fn=flushed_if_deep, idea="flushes subnormal sums of 64 terms and more"),
}

CAUGHT_BY = {"skipped_rows": "special_values", "flushed_if_deep": "accuracy"}
