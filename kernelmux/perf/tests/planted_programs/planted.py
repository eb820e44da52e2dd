"""Squares with one thing wrong each, as `--impl .../planted.py:stores_scattered --op square` runs them."""

import torch

from kernelmux.backends.cuda._launch.runtime import Source, cdiv
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Dtypes

SOURCE = Source(__file__)
THREADS = 1024


def _launched(entry: str, x: torch.Tensor, elements: int) -> torch.Tensor:
    """y of the kernel `entry`, in blocks of `elements` elements of x [any shape, contiguous, fp32]."""
    y = torch.empty_like(x)
    SOURCE.kernel(entry, "x* y* n:i64")(cdiv(x.numel(), elements), THREADS, x, y, x.numel())
    return y


def _planted(entry: str, elements: int, idea: str) -> Implementation:
    fp32, layout = (Dtypes("x", torch.float32),), {"x": "contiguous"}
    return Implementation(lambda x: _launched(entry, x, elements), idea, requires=fp32, layout=layout)


stores_scattered = _planted("square_stores_scattered", THREADS, "stores are 32 elements apart")
spilled = _planted("square_spilled", 96 * THREADS, "96 values a thread, in 32 registers")
beyond = _planted("square_beyond", THREADS, "the last store is out of bounds")
