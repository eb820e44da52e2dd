"""MaxPool2d."""

from __future__ import annotations

from typing import Any

import torch

import kernelmux as kx
from kernelmux.nn.module import Ours

Size = int | tuple[int, int]
ASKED = {"dilation": (1, (1, 1), [1, 1]), "return_indices": (False,), "ceil_mode": (False,)}


class MaxPool2d(Ours, torch.nn.MaxPool2d):
    """torch.nn.MaxPool2d on `max_pool2d`: images [N, C, H, W] or [C, H, W], channels-last ones too.

    ArgumentError at construction for a dilation, return_indices and ceil_mode, which the operator does not have.
    """

    op = "max_pool2d"

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        dilation: Size = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__(kernel_size, stride, padding, dilation, return_indices, ceil_mode)
        self._check()

    @classmethod
    def obstacle(cls, module: Any) -> str | None:
        given = ((name, getattr(module, name), legal) for name, legal in ASKED.items())
        problems = (f"{name}: expected {legal[0]}, got {value}" for name, value, legal in given if value not in legal)
        return next(problems, None)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        options: Any = (self.kernel_size, self.stride, self.padding)
        return kx.max_pool2d(input, *options)
