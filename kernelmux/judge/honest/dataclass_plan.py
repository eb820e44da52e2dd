"""A frozen dataclass says how the tensor is cut before anything is computed."""

from dataclasses import dataclass
from functools import cached_property

import torch

OP = "reduce_sum"
FUNCTION = "reduce_sum"
NEEDS = "cpu"
ALLOW = "torch"


@dataclass(frozen=True)
class SumPlan:
    shape: torch.Size
    axis: int | None
    keepdim: bool

    @cached_property
    def view(self):
        if self.axis is None:
            return (1, self.shape.numel(), 1)
        before, after = self.shape[: self.axis], self.shape[self.axis + 1 :]
        return (before.numel(), self.shape[self.axis], after.numel())

    @cached_property
    def final(self):
        kept = [1 if self.axis is None or i == self.axis else n for i, n in enumerate(self.shape)]
        left = [] if self.axis is None else [n for i, n in enumerate(self.shape) if i != self.axis]
        return kept if self.keepdim else left


def reduce_sum(x, axis, keepdim):
    plan = SumPlan(x.shape, axis, keepdim)
    return x.double().reshape(plan.view).sum(1).to(x.dtype).view(plan.final)
