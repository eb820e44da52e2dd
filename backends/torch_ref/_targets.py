"""Targets that may be no class."""

import torch

from kernelmux.backends.torch_ref._values import first_wrong
from kernelmux.registry.errors import ArgumentError


def safe_targets(
    op: str, logits: torch.Tensor, target: torch.Tensor, ignore_index: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows that count, rows whose target is no class, and targets with class 0 in place of those and of ignored ones.

    On a CPU a target that is no class is an ArgumentError.
    """
    counts = target != ignore_index
    wrong = counts & ((target < 0) | (target >= logits.shape[-1]))
    if found := first_wrong(wrong, target):
        legal = f"0 <= target < {logits.shape[-1]} or ignore_index = {ignore_index}"
        place = f" in row {found[1][0]}" if found[1] else ""
        raise ArgumentError(f"{op}: target: expected {legal}, got {found[0]}{place}")
    return counts, wrong, target.masked_fill(~counts | wrong, 0)
