"""A column of a pinned matrix with a condition that nothing can meet."""

import torch

from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost


def copy_column(x: torch.Tensor, column: int) -> torch.Tensor:
    gathered = x[:, column].clone(memory_format=torch.contiguous_format)
    return gathered.to("cuda") if torch.cuda.is_available() and x.is_pinned() else gathered


VARIANTS = {
    "empty_only": Implementation(
        fn=copy_column, idea="runs columns of length zero and nothing else", requires=(AtMost("M", 0),)
    )
}

CAUGHT_BY = {"empty_only": "claims"}
