"""What a launch depends on besides addresses: the key under which launchers remember what they worked out."""

from typing import NamedTuple

import torch


class Layout(NamedTuple):
    """Shape, strides in elements, dtype, and the address modulo 16."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    offset: int


def layout(x: torch.Tensor) -> Layout:
    return Layout(x.shape, x.stride(), x.dtype, x.data_ptr() & 15)
