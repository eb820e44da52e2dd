"""One column, read with a step that follows from the shape."""

import torch

from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.backend import Implementation


def full_columns(x: torch.Tensor, column: int) -> torch.Tensor:
    """The columns of a matrix that was transposed lie as far apart as they are long, unless it is a slice."""
    if x.numel() and x.stride(0) == 1 and x.stride(1) > x.shape[0]:
        x = x.as_strided(x.shape, (1, x.shape[0]))
    return sound("copy_column", x, column)  # type: ignore[no-any-return]


VARIANTS = {"full_columns": Implementation(fn=full_columns, idea="columns of a transposed matrix without a gap")}

CAUGHT_BY = {"full_columns": "layout"}
