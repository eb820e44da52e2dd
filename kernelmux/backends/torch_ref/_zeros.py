"""What sums without terms come to."""

from collections.abc import Sequence

import torch


def zeros(shape: Sequence[int], *factors: torch.Tensor) -> torch.Tensor:
    """Zeros like the first factor that autograd can follow to each of them: no element of any is in a sum."""
    y = factors[0].new_zeros(shape)
    for x in factors:
        if x.requires_grad:
            y = y + x.flatten()[:0].sum()
    return y
