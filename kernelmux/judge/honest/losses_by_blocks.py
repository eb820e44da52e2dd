"""Cross entropy with a loop over blocks of rows, which looks only at those that are not ignored."""

import math

import torch

OP = "cross_entropy"
FUNCTION = "cross_entropy"
NEEDS = "cpu"
ALLOW = "torch"
ELEMENTS = 1 << 24  # of a block


def cross_entropy(logits, target, ignore_index, label_smoothing, reduction):
    losses = torch.zeros(logits.shape[0], dtype=torch.float64, device=logits.device)
    lse = torch.empty(logits.shape[0], dtype=torch.float64, device=logits.device)
    counted, rows = 0, max(1, ELEMENTS // max(1, logits.shape[1]))
    for first in range(0, len(target), rows):
        wide, wanted = logits[first : first + rows].double(), target[first : first + rows]
        top = wide.amax(-1, keepdim=True)
        sums = top[:, 0] + (wide - top).exp().sum(-1).log()
        lse[first : first + rows] = sums
        kept = (wanted != ignore_index).nonzero()[:, 0]
        counted += len(kept)
        inside = (wanted[kept] >= 0) & (wanted[kept] < logits.shape[1])
        chosen = wide[kept, wanted[kept].where(inside, 0)]
        loss = sums[kept] - (1 - label_smoothing) * chosen
        loss = loss - label_smoothing * wide[kept].mean(-1) if label_smoothing else loss
        losses[first + kept] = loss.where(inside, math.nan)
    total = {"none": losses, "sum": losses.sum(), "mean": losses.sum() / losses.new_tensor(counted)}[reduction]
    return total.float(), lse.float()
