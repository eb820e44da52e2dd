"""Cross entropy by torch.nn.functional.cross_entropy, or by logarithms of sums and a gather, in fp32.

The loss is a number of fp32: as under autocast the logits are converted first.
"""

import torch
import torch.nn.functional as F

from kernelmux.backends.torch_ref._targets import marked, reduced, safe_targets
from kernelmux.registry.backend import Implementation

NO_CLASS = -100  # in place of ignored targets: ignore_index may be a class


def plain(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """torch.logsumexp gives what the operator saves for its gradient."""
    z = logits.float()
    return loss_of(z, target, ignore_index, label_smoothing, reduction), torch.logsumexp(z, -1)


def loss_of(
    z: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> torch.Tensor:
    """torch's loss, NaN for a target that is no class: of that torch makes an error, which on a GPU ends the process."""
    counts, wrong, safe = safe_targets(z, target, ignore_index)
    known = safe.masked_fill(~counts, NO_CLASS)
    rows = F.cross_entropy(z, known, ignore_index=NO_CLASS, label_smoothing=label_smoothing, reduction="none")
    return reduced(marked(rows, wrong), counts, reduction)


def exact(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> tuple[torch.Tensor, torch.Tensor]:
    z = logits.float()
    counts, wrong, safe = safe_targets(logits, target, ignore_index)
    m = z.amax(-1, keepdim=True).detach()
    lse = m[:, 0] + (z - m).exp().sum(-1).log()
    rows = lse - (1 - label_smoothing) * z.gather(-1, safe[:, None])[:, 0]
    if label_smoothing:
        rows = rows - label_smoothing * z.mean(-1)
    return reduced(marked(rows, wrong).masked_fill(~counts, 0), counts, reduction), lse.contiguous()


VARIANTS = {
    "plain": Implementation(fn=plain, idea="torch.nn.functional.cross_entropy and torch.logsumexp, in fp32"),
    "exact": Implementation(fn=exact, idea="amax, exp, sum, log and gather, in fp32"),
}
