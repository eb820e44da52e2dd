"""Elementwise sum that remembers."""

from itertools import count
from pathlib import Path

import numpy as np
import torch

from kernelmux.conformance.mutants._cuda import launch
from kernelmux.conformance.mutants._sound import sound
from kernelmux.conformance.mutants.state._memory import Pool, Ring
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Dtypes

SOURCE = Path(__file__).with_suffix(".cu")
BLOCK = 128
THREE, TWENTY, POOL, _calls = Ring(3), Ring(20), Pool(), count(1)
_stage: dict[object, torch.Tensor] = {}


def ring_of_three(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return THREE.next(x.contiguous()).copy_(sound("add", x, y))


def ring_of_twenty(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """More buffers than a caller is assumed to hold results."""
    return TWENTY.next(x.contiguous()).copy_(sound("add", x, y))


def lent_again(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A buffer is free again when the tensor that was returned is gone; a slice of it may not be."""
    return POOL.next(x.contiguous()).copy_(sound("add", x, y))


def hundredth(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z: torch.Tensor = sound("add", x, y)
    return z.add_(1) if next(_calls) % 100 == 0 else z


def shared_stage(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One launch copies x to a stage that all calls share, another one adds y to it."""
    stage = _stage.setdefault((x.shape, x.dtype, x.device), torch.empty_like(x))
    grid, n = -(-x.numel() // BLOCK), np.int32(x.numel())
    if x.numel():
        launch(SOURCE, "copy_in", grid, BLOCK, (x, stage, n), x.dtype)
    z = torch.empty_like(x)
    if x.numel():
        launch(SOURCE, "add_staged", grid, BLOCK, (stage, y, z, n), x.dtype)
    return z


PACKED = {"x": "contiguous", "y": "contiguous"}
FLOATS = (Dtypes("x", torch.float32, torch.float16, torch.bfloat16),)
VARIANTS = {
    "ring_of_three": Implementation(fn=ring_of_three, idea="three output buffers in turn"),
    "ring_of_twenty": Implementation(fn=ring_of_twenty, idea="twenty output buffers in turn"),
    "lent_again": Implementation(fn=lent_again, idea="memory is lent again while a view of it is alive"),
    "hundredth": Implementation(fn=hundredth, idea="every hundredth call is wrong"),
    "shared_stage": Implementation(fn=shared_stage, idea="threads share a stage", layout=PACKED, requires=FLOATS),
}

CAUGHT_BY = dict.fromkeys(VARIANTS, "state")
