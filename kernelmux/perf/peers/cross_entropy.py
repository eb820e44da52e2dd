"""Cross entropy in other libraries, with what a backward needs."""

import torch

from kernelmux.perf.peers._libraries import compiled, function, library
from kernelmux.registry.conditions import OneOf

_quack = function("quack.cross_entropy.cross_entropy_fwd")
_fla = function("fla.modules.fused_cross_entropy.ops.cross_entropy_fwd")
Pair = tuple[torch.Tensor, torch.Tensor]


def with_torch(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> Pair:
    z = logits.float()
    options = {"ignore_index": ignore_index, "label_smoothing": label_smoothing, "reduction": reduction}
    return torch.nn.functional.cross_entropy(z, target, **options), torch.logsumexp(z, -1)  # type: ignore[arg-type]


def with_quack(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> Pair:
    loss, lse = _quack(logits, target, ignore_index=ignore_index, return_lse=True)
    return loss.sum() / (1 if reduction == "sum" else (target != ignore_index).sum()), lse


def with_fla(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> Pair:
    loss, _, lse, *_ = _fla(logits, target, label_smoothing, ignore_index=ignore_index)
    if reduction != "none":
        loss = loss.sum() / (1 if reduction == "sum" else (target != ignore_index).sum())
    return loss, lse


VARIANTS = {
    "torch_compile": compiled(with_torch),
    "quack": library("quack", with_quack, OneOf("label_smoothing", 0.0), OneOf("reduction", "mean", "sum")),
    "fla": library("fla", with_fla),
}
