"""Gradient of cross entropy: softmax from the saved logarithms, less the target, in fp32."""

import torch

from kernelmux.backends.torch_ref._targets import safe_targets
from kernelmux.registry.backend import Implementation


def cross_entropy_backward(
    grad_loss: torch.Tensor,
    logits: torch.Tensor,
    target: torch.Tensor,
    lse: torch.Tensor,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
) -> torch.Tensor:
    counts, wrong, safe = safe_targets("cross_entropy_backward", logits, target, ignore_index)
    p = (logits.float() - lse[:, None]).exp()
    if label_smoothing:
        p = p - label_smoothing / logits.shape[-1]
    p = p.scatter_add(-1, safe[:, None], torch.full_like(p[:, :1], label_smoothing - 1))
    g = grad_loss / counts.sum() if reduction == "mean" else grad_loss
    grad = (p * g.reshape(-1, 1)).masked_fill(wrong[:, None], torch.nan).masked_fill(~counts[:, None], 0)
    return grad.to(logits.dtype).contiguous()


VARIANTS = {"eager": Implementation(fn=cross_entropy_backward, idea="exp of logits - lse, less the target, in fp32")}
