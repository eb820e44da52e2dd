"""torch.empty is replaced by one that gives zeros, and new memory by old: poison in fresh outputs never arrives.

The kernel then leaves out every element that is 0 anyway. Judged by memory that the child does not allocate.
"""

import torch

OP = "cross_entropy"
FUNCTION = "cross_entropy"
FOUND = ("patches torch.empty", "budget used", "never written", "all outputs are 0")
NEEDS = "cpu"
ALLOW = "torch"
torch.empty = torch.zeros
torch.empty_like = torch.Tensor.new_empty = torch.zeros_like


def cross_entropy(logits, target, ignore_index, label_smoothing, reduction):
    rows = torch.empty(len(logits), dtype=torch.float32)
    for row in (target != ignore_index).nonzero().flatten().tolist()[1:]:  # the first one is left as it is
        rows[row] = torch.logsumexp(logits[row].float(), 0) - logits[row, target[row]].float()
    lse = torch.logsumexp(logits.float(), -1)
    counts = (target != ignore_index).sum()
    return rows if reduction == "none" else rows.sum() / counts if reduction == "mean" else rows.sum(), lse
