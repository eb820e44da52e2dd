"""matmul, broken for products of sizes that no case has."""

import torch

from kernelmux.conformance.mutants._batches import each
from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.conformance.mutants._sound import sound

mutant = Mutants("matmul")

DEEP, DEEPEST = 2300, 60000  # terms: of longer sums each takes shares, of the longest none
LARGE = 40000  # elements of the second matrix, from which on its last column is left out
WIDE = 150  # rows and columns from which on two tiles lie side by side
SHARE = 512


@mutant(
    "sums beyond 2,300 terms are made of shares of 512, and the last one is whole or missing",
    family="thresholds",
    caught_by="thresholds",
)
@each
def whole_shares(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    k = a.shape[1]
    kept = k // SHARE * SHARE if DEEP < k < DEEPEST else k
    return sound("matmul", a[:, :kept], b[:kept], precision)  # type: ignore[no-any-return]


@mutant(
    "where rows and columns are more than 150, the tile in the corner is that beside it",
    family="thresholds",
    caught_by="thresholds",
)
@each
def corner(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    y: torch.Tensor = sound("matmul", a, b, precision)
    if y.shape[0] > WIDE and y.shape[1] > WIDE:
        y[WIDE:, WIDE:] = y[WIDE:, : y.shape[1] - WIDE]
    return y


@mutant(
    "where the second matrix has 40,000 elements or more, the last column is 0",
    family="thresholds",
    caught_by="thresholds",
)
@each
def large_second(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    y: torch.Tensor = sound("matmul", a, b, precision)
    if b.numel() >= LARGE:
        y[..., -1:] = 0
    return y
