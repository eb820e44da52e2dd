"""CrossEntropyLoss."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

import kernelmux as kx
from kernelmux.nn.fallback import unsuited
from kernelmux.nn.module import Ours, outside
from kernelmux.registry.dtypes import SHORT


class CrossEntropyLoss(Ours, torch.nn.CrossEntropyLoss):
    """torch.nn.CrossEntropyLoss on `cross_entropy`: input [N, C, ...] or [C], target [N, ...] or [] of classes (int64).

    The loss is fp32 whatever the dtype of the input; torch rounds it to that dtype. ArgumentError at construction for
    weights of classes, and in a call for a target of probabilities. A target that is no class is NaN in the loss, and in
    its row of the gradient, where torch raises or ends the process; with KERNELMUX_CHECK=1 it is an ArgumentError.
    """

    op = "cross_entropy"

    def __init__(
        self,
        weight: torch.Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(weight, size_average, ignore_index, reduce, reduction, label_smoothing)
        self._check()

    @classmethod
    def obstacle(cls, module: Any) -> str | None:
        if module.weight is not None:
            return "weight: expected None (the operator weighs all classes alike), got a tensor"
        smoothing = outside(cls.op, "label_smoothing", module.label_smoothing)
        return smoothing or outside(cls.op, "reduction", module.reduction)

    def declined(self, input: torch.Tensor, target: torch.Tensor) -> str | None:
        if self.weight is not None:
            return "it has weights of classes"
        if problem := unsuited(input):
            return problem
        if target.dtype != torch.int64:
            found = (
                "probabilities" if target.is_floating_point() else f"classes as {SHORT.get(target.dtype, target.dtype)}"
            )
            return f"its target holds {found}"
        if isinstance(input, FakeTensor) and not torch.compiler.is_compiling():
            return "its input is fake, and has no values to look at"
        classes = input.shape[min(input.dim(), 2) - 1] if input.dim() else 0
        return None if classes else "it has no classes"

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if target.is_floating_point():
            raise kx.ArgumentError(
                "cross_entropy: target: expected classes (int64), got probabilities: use torch.nn.CrossEntropyLoss"
            )
        reduction: Any = self.reduction
        loss = kx.cross_entropy(_rows(input), target.flatten(), self.ignore_index, self.label_smoothing, reduction)
        return loss.view(target.shape) if reduction == "none" else loss


def _rows(logits: torch.Tensor) -> torch.Tensor:
    """[M, C] of [C], [N, C] or [N, C, ...]."""
    if logits.dim() == 1:
        return logits[None]
    return logits if logits.dim() == 2 else logits.movedim(1, -1).flatten(0, -2)
