"""Cross entropy with a loop over rows, skipping those that are ignored."""

import math

import torch

OP = "cross_entropy"
FUNCTION = "cross_entropy"
NEEDS = "cpu"
ALLOW = "torch"


def cross_entropy(logits, target, ignore_index, label_smoothing, reduction):
    wide = logits.double()
    top = wide.amax(-1, keepdim=True)
    lse = top[:, 0] + (wide - top).exp().sum(-1).log()
    losses, counted = [], 0
    for row, wanted in enumerate(target.tolist()):
        if wanted == ignore_index:
            losses.append(torch.zeros((), dtype=torch.float64, device=logits.device))
            continue
        counted += 1
        if not 0 <= wanted < logits.shape[1]:
            losses.append(torch.full((), math.nan, dtype=torch.float64, device=logits.device))
            continue
        loss = lse[row] - (1 - label_smoothing) * wide[row, wanted]
        losses.append(loss - label_smoothing * wide[row].mean() if label_smoothing else loss)
    rows = torch.stack(losses) if losses else wide.new_zeros(0)
    total = {"none": rows, "sum": rows.sum(), "mean": rows.sum() / wide.new_tensor(counted)}[reduction]
    return total.float(), lse.float()
