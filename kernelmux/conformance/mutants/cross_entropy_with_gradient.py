"""cross_entropy_with_gradient, broken."""

import torch

from kernelmux.conformance.mutants._mutant import Mutants

mutant = Mutants("cross_entropy_with_gradient")


# basics: Cross entropy with its gradient, broken.

Pair = tuple[torch.Tensor, torch.Tensor]
Target = torch.Tensor
FIRST = 64  # columns of a first part


def _loss_and_gradient(
    logits: torch.Tensor, target: Target, options: tuple[int, float, str], total: torch.Tensor | None = None
) -> Pair:
    """total: of each row's exponentials, relative to its maximum."""
    (ignore_index, smoothing, reduction), z, V = options, logits.double(), logits.shape[-1]
    counts = target != ignore_index
    wrong = counts & ((target < 0) | (target >= V))
    safe = target.masked_fill(wrong | ~counts, 0)[:, None]
    e = torch.exp(z - z.amax(-1, keepdim=True))
    total = e.sum(-1) if total is None else total
    rows = z.amax(-1) + total.log() - (1 - smoothing) * z.gather(-1, safe)[:, 0]
    rows = rows - smoothing * z.mean(-1) if smoothing else rows
    rows = rows.masked_fill(wrong, torch.nan).masked_fill(~counts, 0)
    count = counts.sum() if reduction == "mean" else 1
    grad = (e / total[:, None] - smoothing / V).scatter_add(-1, safe, torch.full_like(e[:, :1], smoothing - 1))
    grad = (grad / count).masked_fill(wrong[:, None], torch.nan).masked_fill(~counts[:, None], 0)
    loss = rows if reduction == "none" else rows.sum() / count
    return loss.float().contiguous(), grad.to(logits.dtype).contiguous()


@mutant("nothing is wrong with it", family="basics")
def sound(logits: torch.Tensor, target: Target, ignore_index: int, label_smoothing: float, reduction: str) -> Pair:
    return _loss_and_gradient(logits, target, (ignore_index, label_smoothing, reduction))


@mutant("the sum of the first part stays relative to its own maximum", family="basics", caught_by="accuracy")
def not_rescaled(
    logits: torch.Tensor, target: Target, ignore_index: int, label_smoothing: float, reduction: str
) -> Pair:
    z = logits.double()
    first = torch.exp(z[:, :FIRST] - z[:, :FIRST].amax(-1, keepdim=True)).sum(-1)
    rest = torch.exp(z[:, FIRST:] - z.amax(-1, keepdim=True)).sum(-1)
    return _loss_and_gradient(logits, target, (ignore_index, label_smoothing, reduction), first + rest)


@mutant("the gradient of a mean is that of the sum", family="basics", caught_by="accuracy")
def undivided(logits: torch.Tensor, target: Target, ignore_index: int, label_smoothing: float, reduction: str) -> Pair:
    loss, _ = _loss_and_gradient(logits, target, (ignore_index, label_smoothing, reduction))
    plain = "sum" if reduction == "mean" else reduction
    return loss, _loss_and_gradient(logits, target, (ignore_index, label_smoothing, plain))[1]


@mutant("subtracts the 1 of the target from the column behind it", family="basics", caught_by="accuracy")
def next_column(
    logits: torch.Tensor, target: Target, ignore_index: int, label_smoothing: float, reduction: str
) -> Pair:
    options, V = (ignore_index, label_smoothing, reduction), logits.shape[-1]
    counts = (target != ignore_index) & (target >= 0) & (target < V)
    shifted = torch.where(counts & (target + 1 < V) & (target + 1 != ignore_index), target + 1, target)
    return _loss_and_gradient(logits, target, options)[0], _loss_and_gradient(logits, shifted, options)[1]


@mutant("the gradient of a row has the target of the row before", family="basics", caught_by="accuracy")
def target_of_the_row_before(
    logits: torch.Tensor, target: Target, ignore_index: int, label_smoothing: float, reduction: str
) -> Pair:
    options = (ignore_index, label_smoothing, reduction)
    return _loss_and_gradient(logits, target, options)[0], _loss_and_gradient(logits, target.roll(1), options)[1]
