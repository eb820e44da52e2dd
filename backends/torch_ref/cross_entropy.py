"""Cross entropy by logarithms of sums and a gather, in fp32."""

import torch

from kernelmux.backends.torch_ref._targets import safe_targets
from kernelmux.registry.backend import Implementation


def cross_entropy(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> tuple[torch.Tensor, torch.Tensor]:
    z = logits.float()
    counts, wrong, safe = safe_targets("cross_entropy", logits, target, ignore_index)
    m = z.amax(-1, keepdim=True).detach()
    lse = m[:, 0] + (z - m).exp().sum(-1).log()
    rows = lse - (1 - label_smoothing) * z.gather(-1, safe[:, None])[:, 0]
    if label_smoothing:
        rows = rows - label_smoothing * z.mean(-1)
    rows = rows.masked_fill(wrong, torch.nan).masked_fill(~counts, 0)
    if reduction == "none":
        return rows.contiguous(), lse.contiguous()
    return (rows.sum() / counts.sum() if reduction == "mean" else rows.sum()), lse.contiguous()


VARIANTS = {"eager": Implementation(fn=cross_entropy, idea="amax, exp, sum, log and gather, in fp32")}
