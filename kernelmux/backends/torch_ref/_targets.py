"""Targets that may be no class: nothing is read there, and loss and gradient of their rows are NaN."""

import torch


def safe_targets(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows that count, rows whose target is no class, and targets with class 0 in place of those and of ignored ones."""
    counts = target != ignore_index
    wrong = counts & ((target < 0) | (target >= logits.shape[-1]))
    return counts, wrong, target.masked_fill(~counts | wrong, 0)


def marked(rows: torch.Tensor, wrong: torch.Tensor) -> torch.Tensor:
    """The losses of rows, NaN where a target is no class; a product, so that the gradient of such a row is NaN too."""
    return rows * torch.ones_like(rows).masked_fill(wrong, torch.nan)


def reduced(rows: torch.Tensor, counts: torch.Tensor, reduction: str) -> torch.Tensor:
    """The losses of rows themselves, their sum, or their mean over those that count."""
    if reduction == "none":
        return rows.contiguous()
    return rows.sum() / counts.sum() if reduction == "mean" else rows.sum()
