"""The gradient of cross entropy in other libraries. That of fla writes over the logits only if told to."""

import torch

from kernelmux.perf.peers._libraries import compiled, function, library
from kernelmux.registry.conditions import OneOf

_quack = function("quack.cross_entropy.cross_entropy_bwd")
_fla = function("fla.modules.fused_cross_entropy.ops.cross_entropy_bwd")


def with_torch(
    grad_loss: torch.Tensor,
    logits: torch.Tensor,
    target: torch.Tensor,
    lse: torch.Tensor,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
) -> torch.Tensor:
    kept = target != ignore_index
    share = torch.exp(logits.float() - lse[:, None])
    hit = torch.arange(logits.shape[1], device=logits.device)[None] == target[:, None]
    wanted = (1 - label_smoothing) * hit + label_smoothing / logits.shape[1]
    each = grad_loss / kept.sum() if reduction == "mean" else grad_loss
    return ((share - wanted) * torch.where(kept, each, 0.0)[:, None]).to(logits.dtype)


def with_quack(
    grad_loss: torch.Tensor,
    logits: torch.Tensor,
    target: torch.Tensor,
    lse: torch.Tensor,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
) -> torch.Tensor:
    each = grad_loss.expand(len(target)) / (target != ignore_index).sum()
    grad: torch.Tensor = _quack(logits, target, each, lse, ignore_index)
    return grad


def with_fla(
    grad_loss: torch.Tensor,
    logits: torch.Tensor,
    target: torch.Tensor,
    lse: torch.Tensor,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
) -> torch.Tensor:
    each = grad_loss / (target != ignore_index).sum() if reduction == "mean" else grad_loss
    grad: torch.Tensor = _fla(
        logits.contiguous(), target, lse, each.expand(len(target)), label_smoothing, ignore_index=ignore_index
    )
    return grad


MEAN = (OneOf("label_smoothing", 0.0), OneOf("reduction", "mean"))
VARIANTS = {
    "torch_compile": compiled(with_torch),
    "quack": library("quack", with_quack, *MEAN),
    "fla": library("fla", with_fla),
}
