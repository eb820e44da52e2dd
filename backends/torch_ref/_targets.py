"""Targets that may be no class."""

import torch

from kernelmux.backends.torch_ref._values import any_wrong
from kernelmux.registry.errors import ArgumentError


def safe_targets(
    op: str, logits: torch.Tensor, target: torch.Tensor, ignore_index: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows that count, rows whose target is no class, and targets with class 0 in place of those and of ignored ones.

    On a CPU a target that is no class is an ArgumentError.
    """
    counts = target != ignore_index
    wrong = counts & ((target < 0) | (target >= logits.shape[-1]))
    if any_wrong(op, "target", wrong):
        row = int(wrong.nonzero()[0])
        legal = f"0 <= target < {logits.shape[-1]} or ignore_index = {ignore_index}"
        raise ArgumentError(f"{op}: target: expected {legal}, got {int(target[row])} in row {row}")
    return counts, wrong, target.masked_fill(~counts | wrong, 0)
