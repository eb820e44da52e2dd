"""Squares by kernels that not every card can have."""

from pathlib import Path

import numpy as np
import torch

from kernelmux.conformance.mutants._cuda import launch
from kernelmux.registry.backend import Implementation
from kernelmux.registry.util import cards

SOURCE = Path(__file__).with_name("square.cu")
LARGE = 120 << 10  # bytes of shared memory that a block of an H200 may have, and one of an RTX 4090 not
BLOCK = 128


def _square(entry: str, shared: int, newer: int, x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    if n := x.numel():
        launch(SOURCE, entry, -(-n // BLOCK), BLOCK, (x, y, np.int32(n)), x.dtype, shared, NEWER=newer)
    return y


def large(x: torch.Tensor) -> torch.Tensor:
    return _square("square_staged", LARGE, 0, x)


def newer(x: torch.Tensor) -> torch.Tensor:
    return _square("square_waits", 0, 1, x)


def asks(x: torch.Tensor) -> torch.Tensor:
    return _square("square_staged", min(LARGE, cards.of_tensor(x).shared_per_block), 0, x)


def leaves_out(x: torch.Tensor) -> torch.Tensor:
    return _square("square_waits", 0, 0, x)


VARIANTS = {
    "large": Implementation(fn=large, idea="120 KB of shared memory on any card"),
    "newer": Implementation(fn=newer, idea="an instruction of sm_90 on any card"),
    "asks": Implementation(fn=asks, idea="120 KB of shared memory, or what the card has"),
    "leaves_out": Implementation(fn=leaves_out, idea="the instruction where the card has it"),
}

CAUGHT_BY = {"large": "compile_only", "newer": "compile_only"}
ONLY_CPU = {"large", "newer"}  # a GPU is one card
