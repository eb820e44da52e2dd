"""Transpose, broken in single bits."""

from pathlib import Path

import numpy as np
import torch

from kernelmux.conformance.mutants import _triton
from kernelmux.conformance.mutants._cuda import launch
from kernelmux.registry.backend import Implementation

SOURCE = Path(__file__).with_suffix(".cu")
BLOCK = 128
RAW = {1: torch.int8, 2: torch.int16, 4: torch.int32}


def as_integers(x: torch.Tensor) -> torch.Tensor:
    """Moves the bits and never looks at a number."""
    raw = x.resolve_neg().contiguous().view(RAW[x.element_size()])
    return raw.t().clone(memory_format=torch.contiguous_format).view(x.dtype)


def through_fp32(x: torch.Tensor) -> torch.Tensor:
    if not x.is_floating_point() or x.dtype == torch.float32:
        return as_integers(x)
    return x.float().t().contiguous().to(x.dtype).clone(memory_format=torch.contiguous_format)


def times_one(x: torch.Tensor) -> torch.Tensor:
    if not x.is_floating_point() or x.numel() == 0:
        return as_integers(x)
    out = torch.empty(x.shape[1], x.shape[0], dtype=x.dtype, device=x.device)
    args = (x, out, np.int32(x.shape[0]), np.int32(x.shape[1]))
    launch(SOURCE, "transpose_times_one", -(-x.numel() // BLOCK), BLOCK, args, x.dtype)
    return out


def plus_zero(x: torch.Tensor) -> torch.Tensor:
    from kernelmux.conformance.mutants.bits import _kernels

    if not x.is_floating_point():
        return as_integers(x)
    return _triton.flat(_kernels.copy_plus_zero, x.t())


VARIANTS = {
    "as_integers": Implementation(fn=as_integers, idea="moves bits as integers: nothing is wrong with it"),
    "through_fp32": Implementation(fn=through_fp32, idea="16-bit values pass through fp32 registers"),
    "times_one": Implementation(fn=times_one, idea="multiplies by one, and flushes", layout={"x": "contiguous"}),
    "plus_zero": Implementation(fn=plus_zero, idea="adds the zero of an absent bias"),
}

CAUGHT_BY = {"through_fp32": "special_values", "times_one": "special_values", "plus_zero": "special_values"}
