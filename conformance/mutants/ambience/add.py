"""Elementwise sum that seeds the generator of the process."""

import random

import torch

from kernelmux.registry.backend import Implementation


def _add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x.double() + y.double()).to(x.dtype).contiguous()


def seeded(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """So that it can be repeated, as its author thought."""
    torch.manual_seed(0)
    return _add(x, y)


def sampled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Writes a line to its log for one call in a thousand."""
    if random.random() < 0.001:
        _ = repr(x.shape)
    return _add(x, y)


VARIANTS = {
    "seeded": Implementation(fn=seeded, idea="seeds torch's generator at every call"),
    "sampled": Implementation(fn=sampled, idea="draws from Python's generator"),
}

CAUGHT_BY = {"seeded": "ambience", "sampled": "ambience"}
