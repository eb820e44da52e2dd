"""Cross entropy with its gradient in other libraries. That of Liger, which writes over the logits, is left out."""

import torch

from kernelmux.perf.peers._libraries import compiled, function, library
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


VARIANTS = {
    "torch_compile": compiled(with_torch),
    "quack": library("quack", with_quack, OneOf("label_smoothing", 0.0), OneOf("reduction", "sum", "none")),
}
