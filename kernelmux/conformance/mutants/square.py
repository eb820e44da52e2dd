"""square, broken."""

from pathlib import Path

import numpy as np
import torch

from kernelmux.conformance.mutants._cuda import launch
from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.registry.util import cards

mutant = Mutants("square")


# bits: Squares that saturate.


@mutant("the largest number where a square overflows", family="bits", caught_by="special_values")
def saturated(x: torch.Tensor) -> torch.Tensor:
    """What is beyond the format becomes its largest number, as in conversions that saturate."""
    square = x.double() * x.double()
    largest = torch.finfo(x.dtype).max
    return torch.where(square.isinf(), square, square.clamp(max=largest)).to(x.dtype).contiguous()


# cards: Squares by kernels that not every card can have.
# only: a GPU is one card

SOURCE = Path(__file__).with_name("square.cu")
LARGE = 120 << 10  # bytes of shared memory that a block of an H200 may have, and one of an RTX 4090 not
BLOCK = 128


def _square(entry: str, shared: int, newer: int, x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    if n := x.numel():
        launch(SOURCE, entry, -(-n // BLOCK), BLOCK, (x, y, np.int64(n)), x.dtype, shared, NEWER=newer)
    return y


@mutant("120 KB of shared memory on any card", family="cards", caught_by="compile_only", only="cpu")
def large(x: torch.Tensor) -> torch.Tensor:
    return _square("square_staged", LARGE, 0, x)


@mutant("an instruction of sm_90 on any card", family="cards", caught_by="compile_only", only="cpu")
def newer(x: torch.Tensor) -> torch.Tensor:
    return _square("square_waits", 0, 1, x)


@mutant("120 KB of shared memory, or what the card has", family="cards")
def asks(x: torch.Tensor) -> torch.Tensor:
    return _square("square_staged", min(LARGE, cards.of_tensor(x).shared_per_block), 0, x)


@mutant("the instruction where the card has it", family="cards")
def leaves_out(x: torch.Tensor) -> torch.Tensor:
    return _square("square_waits", 0, 0, x)
