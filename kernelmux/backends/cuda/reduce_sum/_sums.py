"""Sums, for reduce_sum and for operators that end in one."""

import torch

from kernelmux.backends.cuda._families.reductions import Reduction
from kernelmux.backends.cuda._launch.runtime import Source

SUM = Reduction(Source(__file__, "reduce_sum.cu"), "reduce_sum")


def sum_partial(partial: torch.Tensor, y: torch.Tensor, follows: bool = False) -> None:
    """y = sum of the contiguous fp32 `partial` over its first dimension; follows: as in Kernel.bind."""
    SUM.partial(partial, y, follows)
