"""Gradient of cross entropy by what torch's autograd calls, or by softmax less the target; in fp32."""

import torch

from kernelmux.backends.torch_ref._targets import safe_targets
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import OneOf


def plain(
    grad_loss: torch.Tensor,
    logits: torch.Tensor,
    target: torch.Tensor,
    lse: torch.Tensor,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
) -> torch.Tensor:
    counts, wrong, safe = safe_targets(logits, target, ignore_index)
    logs, known = logits - lse[:, None], safe.masked_fill(~counts, ignore_index)
    kind = ("none", "mean", "sum").index(reduction)
    grad = torch.ops.aten.nll_loss_backward(grad_loss, logs, known, None, kind, ignore_index, counts.sum().float())
    found = torch.ops.aten._log_softmax_backward_data(grad, logs, -1, torch.float32)
    return found.masked_fill(wrong[:, None], torch.nan).to(logits.dtype)  # type: ignore[no-any-return]


def exact(
    grad_loss: torch.Tensor,
    logits: torch.Tensor,
    target: torch.Tensor,
    lse: torch.Tensor,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
) -> torch.Tensor:
    counts, wrong, safe = safe_targets(logits, target, ignore_index)
    p = (logits.float() - lse[:, None]).exp()
    if label_smoothing:
        p = p - label_smoothing / logits.shape[-1]
    p = p.scatter_add(-1, safe[:, None], torch.full_like(p[:, :1], label_smoothing - 1))
    g = grad_loss / counts.sum() if reduction == "mean" else grad_loss
    grad = (p * g.reshape(-1, 1)).masked_fill(wrong[:, None], torch.nan).masked_fill(~counts[:, None], 0)
    return grad.to(logits.dtype).contiguous()


VARIANTS = {
    "plain": Implementation(
        fn=plain,
        idea="torch.ops.aten.nll_loss_backward and _log_softmax_backward_data, in fp32",
        requires=(OneOf("label_smoothing", 0.0),),
    ),
    "exact": Implementation(fn=exact, idea="exp of logits - lse, less the target, in fp32"),
}
