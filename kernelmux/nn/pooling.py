"""MaxPool2d."""

from __future__ import annotations

from typing import Any

import torch

import kernelmux as kx
from kernelmux.nn.fallback import unsuited
from kernelmux.nn.module import Ours

Size = int | tuple[int, int]
PIXELS = 2**30  # of a plane: the operator has fewer
ASKED = {"dilation": (1, (1, 1), [1, 1]), "return_indices": (False,), "ceil_mode": (False,)}


class MaxPool2d(Ours, torch.nn.MaxPool2d):
    """torch.nn.MaxPool2d on `max_pool2d`: images [N, C, H, W] or [C, H, W], channels-last ones too.

    ArgumentError at construction for a dilation, return_indices and ceil_mode, which the operator does not have, and for a
    length that is a sequence of one.
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
        for name, legal in ASKED.items():
            if (value := getattr(module, name)) not in legal:
                return f"{name}: expected {legal[0]}, got {value}"
        for name in ("kernel_size", "stride", "padding"):
            if isinstance(value := getattr(module, name), list | tuple) and len(value) != 2:
                return f"{name}: expected an int, or 2 of them, got {value}"
        return None

    def declined(self, input: torch.Tensor) -> str | None:
        if self.return_indices or self.ceil_mode or self.dilation not in ASKED["dilation"]:
            return "it has a dilation, return_indices or ceil_mode"
        large = input.dim() > 1 and input.shape[-2] * input.shape[-1] >= PIXELS
        return unsuited(input) or ("its planes have too many elements" if large else None)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        options: Any = (self.kernel_size, self.stride, self.padding)
        return kx.max_pool2d(input, *options)
