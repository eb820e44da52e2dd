"""Rows in 8 bits by torch operators."""

import torch

from kernelmux.backends.torch_ref._conditions import filled
from kernelmux.registry import dtypes
from kernelmux.registry.backend import Implementation


def plain(x: torch.Tensor, format: str) -> tuple[torch.Tensor, torch.Tensor]:
    dtype, top = dtypes.parse(format), x.abs().amax(1).float()
    largest = (torch.finfo if dtype.is_floating_point else torch.iinfo)(dtype).max
    scale = top / top.new_full(top.shape, largest)  # of a number torch takes the reciprocal on a GPU
    q = torch.where(scale[:, None] == 0, 0, x / scale[:, None])
    if dtype.is_floating_point:
        return q.clamp(-largest, largest).to(dtype).contiguous(), scale
    return q.round().clamp(-largest - 1, largest).nan_to_num(nan=0).to(dtype).contiguous(), scale


def exact(x: torch.Tensor, format: str) -> tuple[torch.Tensor, torch.Tensor]:
    x, dtype = x.contiguous().float(), dtypes.parse(format)
    largest = (torch.finfo if dtype.is_floating_point else torch.iinfo)(dtype).max
    top = x.abs().amax(1) if x.shape[1] else x.new_zeros(len(x))
    scale = top / top.new_full(top.shape, largest)  # of a number torch takes the reciprocal on a GPU
    q = torch.where(scale[:, None] == 0, 0, x / scale[:, None])
    if dtype.is_floating_point:
        return q.clamp(-largest, largest).to(dtype), scale
    return q.round().clamp(-largest - 1, largest).nan_to_num(nan=0).to(dtype), scale


VARIANTS = {
    "plain": Implementation(fn=plain, idea="maximum, division, rounding: a pass each", requires=(filled("x"),)),
    "exact": Implementation(fn=exact, idea="maximum, division, rounding: a pass each, in fp32"),
}
