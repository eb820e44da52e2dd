"""Root-mean-square normalisation, broken for rows that lie at two pitches."""

from pathlib import Path

import numpy as np
import torch

from kernelmux.conformance.mutants._cuda import launch
from kernelmux.registry.backend import Implementation

SOURCE = Path(__file__).with_suffix(".cu")
BLOCK = 64


def one_pitch(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Rows of any pitch are read in place; the pitch of the last two axes stands for all."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    n = x.shape[-1]
    if out.numel() == 0:
        return out
    rows = out.numel() // n
    pitch = x.stride(-2) if x.dim() > 1 and x.shape[-2] > 1 else n
    if pitch < n:
        x, pitch = x.contiguous(), n
    args = (x, weight, out, np.float32(eps), np.int32(rows), np.int32(n), np.int64(pitch))
    launch(SOURCE, "rms_norm_one_pitch", -(-rows // BLOCK), BLOCK, args, x.dtype)
    return out


LAYOUT = {"x": "last", "weight": "contiguous"}

VARIANTS = {"one_pitch": Implementation(fn=one_pitch, idea="one pitch stands for all rows", layout=LAYOUT)}

CAUGHT_BY = {"one_pitch": "layout"}
