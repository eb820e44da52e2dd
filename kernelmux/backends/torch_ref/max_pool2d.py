"""Largest elements of windows by torch.nn.functional.max_pool2d."""

import torch
import torch.nn.functional as F

from kernelmux.registry.backend import Implementation
from kernelmux.registry.spec.sliding_windows import Pair
from kernelmux.registry.util.memory_format import format_of, fresh


def max_pool2d(x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair) -> tuple[torch.Tensor, torch.Tensor]:
    y, index = F.max_pool2d(x, kernel, stride, padding, return_indices=True)
    form = format_of(x)  # torch gives channels-last results for images with gaps too
    return fresh(y, form), fresh(index.int(), form)


VARIANTS = {"plain": Implementation(fn=max_pool2d, idea="torch.nn.functional.max_pool2d")}
