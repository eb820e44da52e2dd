"""cross_entropy_backward, broken."""

import torch

from kernelmux.conformance.mutants._mutant import Mutants

mutant = Mutants("cross_entropy_backward")


# basics: Gradient of cross entropy, broken.

T = torch.Tensor


@mutant("nothing is wrong with it", family="basics")
def sound(grad_loss: T, logits: T, target: T, lse: T, ignore_index: int, label_smoothing: float, reduction: str) -> T:
    counts = target != ignore_index
    wrong = counts & ((target < 0) | (target >= logits.shape[-1]))
    safe = target.masked_fill(wrong | ~counts, 0)
    p = torch.exp(logits.double() - lse[:, None]) - label_smoothing / logits.shape[-1]
    p = p.scatter_add(-1, safe[:, None], torch.full_like(p[:, :1], label_smoothing - 1))
    g = grad_loss.double() / (counts.sum() if reduction == "mean" else 1)
    grad = (p * g.reshape(-1, 1)).masked_fill(wrong[:, None], torch.nan).masked_fill(~counts[:, None], 0)
    return grad.to(logits.dtype).contiguous()


@mutant("divides by all rows, ignored ones among them", family="basics", caught_by="accuracy")
def over_all(
    grad_loss: T, logits: T, target: T, lse: T, ignore_index: int, label_smoothing: float, reduction: str
) -> T:
    share = grad_loss / max(len(target), 1) if reduction == "mean" else grad_loss
    plain = "sum" if reduction == "mean" else reduction
    return sound(share, logits, target, lse, ignore_index, label_smoothing, plain)


@mutant("gives ignored rows a gradient", family="basics", caught_by="accuracy")
def ignored_rows_too(
    grad_loss: T, logits: T, target: T, lse: T, ignore_index: int, label_smoothing: float, reduction: str
) -> T:
    made = sound(grad_loss, logits, target, lse, ignore_index, label_smoothing, reduction)
    g = grad_loss.double() / ((target != ignore_index).sum() if reduction == "mean" else 1)
    other = (torch.exp(logits.double() - lse[:, None]) * g.reshape(-1, 1)).to(made.dtype)
    return torch.where((target == ignore_index)[:, None], other, made).contiguous()


@mutant("takes the first gradient of [M] for all rows", family="basics", caught_by="accuracy")
def first_gradient(
    grad_loss: T, logits: T, target: T, lse: T, ignore_index: int, label_smoothing: float, reduction: str
) -> T:
    g = grad_loss[:1].expand(grad_loss.shape) if grad_loss.dim() else grad_loss
    return sound(g, logits, target, lse, ignore_index, label_smoothing, reduction)
