"""Cross entropy with its gradient in other libraries. That of Liger, which writes over the logits, is left out.

fla has one call for the loss and one for the gradient, so that it reads the logits twice.
"""

import torch

from kernelmux.perf.peers._libraries import compiled, function, library
from kernelmux.perf.peers.cross_entropy import with_fla as fla_loss
from kernelmux.perf.peers.cross_entropy_backward import with_fla as fla_gradient
from kernelmux.registry.conditions import OneOf

_quack = function("quack.cross_entropy.cross_entropy_fwd")
Pair = tuple[torch.Tensor, torch.Tensor]


def with_torch(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> Pair:
    z, kept = logits.float(), target != ignore_index
    options = {"ignore_index": ignore_index, "label_smoothing": label_smoothing, "reduction": reduction}
    loss = torch.nn.functional.cross_entropy(z, target, **options)  # type: ignore[arg-type]
    hit = torch.arange(logits.shape[1], device=logits.device)[None] == target[:, None]
    grad = torch.softmax(z, -1) - (1 - label_smoothing) * hit - label_smoothing / logits.shape[1]
    scale = torch.where(kept, 1 / kept.sum() if reduction == "mean" else 1.0, 0.0)
    return loss, (grad * scale[:, None]).to(logits.dtype)


def with_quack(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> Pair:
    loss, grad = _quack(logits, target, ignore_index=ignore_index, return_dx=True)
    return (loss.sum() if reduction == "sum" else loss), grad


def with_fla(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> Pair:
    scalars = (ignore_index, label_smoothing, reduction)
    loss, lse = fla_loss(logits, target, *scalars)
    return loss, fla_gradient(torch.ones_like(loss), logits, target, lse, *scalars)


VARIANTS = {
    "torch_compile": compiled(with_torch),
    "quack": library("quack", with_quack, OneOf("label_smoothing", 0.0), OneOf("reduction", "sum", "none")),
    "fla": library("fla", with_fla),
}
