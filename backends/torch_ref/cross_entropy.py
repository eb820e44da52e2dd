"""Cross entropy by torch.nn.functional.cross_entropy, or by logarithms of sums and a gather, in fp32.

The loss is a number of fp32: as under autocast the logits are converted first.
"""

import torch
import torch.nn.functional as F

from kernelmux.backends.torch_ref._targets import safe_targets
from kernelmux.registry.backend import Implementation


def plain(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """torch.logsumexp gives what the operator saves for its gradient."""
    z = logits.float()
    loss = loss_of("cross_entropy", z, target, ignore_index, label_smoothing, reduction)
    return loss, torch.logsumexp(z, -1)


def loss_of(
    op: str, z: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> torch.Tensor:
    """torch's loss, NaN for a target that is no class: on a GPU it would end the process."""
    _, wrong, _ = safe_targets(op, z, target, ignore_index)
    options = {"ignore_index": ignore_index, "label_smoothing": label_smoothing, "reduction": reduction}
    loss = F.cross_entropy(z, target.masked_fill(wrong, ignore_index), **options)  # type: ignore[arg-type]
    return loss.masked_fill(wrong if reduction == "none" else wrong.any(), torch.nan)


def exact(
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


VARIANTS = {
    "plain": Implementation(fn=plain, idea="torch.nn.functional.cross_entropy and torch.logsumexp, in fp32"),
    "exact": Implementation(fn=exact, idea="amax, exp, sum, log and gather, in fp32"),
}
