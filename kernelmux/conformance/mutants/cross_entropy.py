"""cross_entropy, broken."""

import torch

from kernelmux.conformance.mutants._mutant import Mutants

mutant = Mutants("cross_entropy")


# basics: Cross entropy, broken.

Pair = tuple[torch.Tensor, torch.Tensor]
Target = torch.Tensor


def _lse(z: torch.Tensor) -> torch.Tensor:
    m = z.amax(-1, keepdim=True)
    return m[:, 0] + torch.exp(z - m).sum(-1).log()


def _loss(lse: torch.Tensor, z: torch.Tensor, target: Target, ignore_index: int, smoothing: float) -> torch.Tensor:
    """Of each row; the target of an ignored one is class 0, and NaN stands where the target is no class."""
    counts = target != ignore_index
    wrong = counts & ((target < 0) | (target >= z.shape[-1]))
    safe = target.masked_fill(wrong | ~counts, 0)
    rows = lse - (1 - smoothing) * z.gather(-1, safe[:, None])[:, 0]
    rows = rows - smoothing * z.mean(-1) if smoothing else rows
    return rows.masked_fill(wrong, torch.nan).masked_fill(~counts, 0)


def _reduced(rows: torch.Tensor, count: torch.Tensor | int, reduction: str) -> torch.Tensor:
    found = rows if reduction == "none" else rows.sum() / count if reduction == "mean" else rows.sum()
    return found.float().contiguous()


@mutant("nothing is wrong with it", family="basics")
def sound(logits: torch.Tensor, target: Target, ignore_index: int, label_smoothing: float, reduction: str) -> Pair:
    z = logits.double()
    lse, count = _lse(z), (target != ignore_index).sum()
    return _reduced(_loss(lse, z, target, ignore_index, label_smoothing), count, reduction), lse.float().contiguous()


@mutant("divides by all rows, ignored ones among them", family="basics", caught_by="accuracy")
def mean_over_all(
    logits: torch.Tensor, target: Target, ignore_index: int, label_smoothing: float, reduction: str
) -> Pair:
    z = logits.double()
    lse = _lse(z)
    rows = _loss(lse, z, target, ignore_index, label_smoothing)
    return _reduced(rows, max(len(rows), 1), reduction), lse.float().contiguous()


@mutant("takes the nearest class for a target that is none", family="basics", caught_by="special_values")
def clamped(logits: torch.Tensor, target: Target, ignore_index: int, label_smoothing: float, reduction: str) -> Pair:
    inside = torch.where(target == ignore_index, target, target.clamp(0, logits.shape[-1] - 1))
    return sound(logits, inside, ignore_index, label_smoothing, reduction)


@mutant("ignores -100 whatever is to be ignored", family="basics", caught_by="special_values")
def always_by_default(
    logits: torch.Tensor, target: Target, ignore_index: int, label_smoothing: float, reduction: str
) -> Pair:
    """torch's default of ignore_index, handed on beside the one that is asked for."""
    return sound(logits, torch.where(target == -100, ignore_index, target), ignore_index, label_smoothing, reduction)


@mutant("saves the logarithm to the base 2", family="basics", caught_by="accuracy")
def base_two(logits: torch.Tensor, target: Target, ignore_index: int, label_smoothing: float, reduction: str) -> Pair:
    loss, lse = sound(logits, target, ignore_index, label_smoothing, reduction)
    return loss, lse * 1.4426950408889634


@mutant("spreads half of the share over the classes", family="basics", caught_by="scalars")
def half_smoothed(
    logits: torch.Tensor, target: Target, ignore_index: int, label_smoothing: float, reduction: str
) -> Pair:
    return sound(logits, target, ignore_index, label_smoothing / 2, reduction)


@mutant("a target has 16 bits", family="extent", caught_by="extent")
def short_target(
    logits: torch.Tensor, target: Target, ignore_index: int, label_smoothing: float, reduction: str
) -> Pair:
    """As many as a vocabulary had for long."""
    cut = torch.where((target > 65535) & (target < logits.shape[-1]), target & 65535, target)
    return sound(logits, cut, ignore_index, label_smoothing, reduction)


@mutant("ignore_index has 32 bits", family="scalars", caught_by="scalars")
def short_ignore_index(
    logits: torch.Tensor, target: Target, ignore_index: int, label_smoothing: float, reduction: str
) -> Pair:
    cut = (ignore_index + 2**31) % 2**32 - 2**31
    return sound(logits, target, cut, label_smoothing, reduction)


@mutant("the maximum of a row is that of its first 1024 logits", family="edges", caught_by="special_values")
def first_block(
    logits: torch.Tensor, target: Target, ignore_index: int, label_smoothing: float, reduction: str
) -> Pair:
    """Right as long as exponentials do not overflow, but where a whole block is -inf."""
    z = logits.double()
    m = z[:, :1024].amax(-1, keepdim=True)
    lse = m[:, 0] + torch.exp(z - m).sum(-1).log()
    count = (target != ignore_index).sum()
    return _reduced(_loss(lse, z, target, ignore_index, label_smoothing), count, reduction), lse.float().contiguous()
