"""The gradient of few long rows in two launches: parts of the rows are looked at, then written once all parts are known."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source
from kernelmux.backends.cuda.cross_entropy._pieces import RowParts
from kernelmux.registry.util.cards import remembered

_SOURCE = Source(__file__, "cross_entropy_with_gradient_pieces.cu")


class GradientInPieces(NamedTuple):
    """Launches, and how many numbers the first leaves to the second; whether the losses become one number."""

    look: BoundLaunch
    write: BoundLaunch
    numbers: int
    added: bool

    def __call__(
        self, logits: torch.Tensor, target: torch.Tensor, loss: torch.Tensor, grad: torch.Tensor
    ) -> torch.Tensor:
        """The loss as it is wanted; loss [M] is room for that of each row."""
        states = loss.new_empty(self.numbers)
        total = loss.new_empty(()) if self.added else None
        self.look(logits, states)
        self.write(logits, target, states, loss, total, grad)
        return loss if total is None else total


@remembered
def gradient_in_pieces(
    pieces: RowParts, rows: int, n: int, step: int, dtype: torch.dtype, ignored: int, smoothing: float, aligned: bool,
    reduction: str,
) -> GradientInPieces:  # fmt: skip
    numbers, look = pieces.look(rows, n, step, dtype, smoothing, aligned)
    added = reduction != "none"
    kernel = _SOURCE.kernel(
        "cross_entropy_with_gradient_pieces",
        "logits* target* states* loss* total* grad* rows:i32 n:i32 step:i64 ignored:i64 smoothing:f32 blocks:i32 parts:i32",
        **pieces.defines(dtype, smoothing, aligned), FEW=1, MEAN=int(reduction == "mean"), ADDED=int(added),
    )  # fmt: skip
    grid, last = added + rows * pieces.blocks, (pieces.blocks, pieces.parts)
    write = kernel.bind(grid, pieces.threads, rows, n, step, ignored, smoothing, *last, follows=True)
    return GradientInPieces(look, write, numbers, added)
