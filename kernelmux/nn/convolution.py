"""Conv2d."""

from __future__ import annotations

from typing import Any, Literal

import torch

import kernelmux as kx
from kernelmux.nn.module import Ours, unfit
from kernelmux.registry.errors import shown
from kernelmux.registry.spec.sliding_windows import Pair, pair


class Conv2d(Ours, torch.nn.Conv2d):
    """torch.nn.Conv2d on `conv2d`: images [N, C, H, W], or one [C, H, W], of any strides; channels-last stays so.

    In one group, padded with zeros, with the same padding on both sides. fp32 is multiplied in fp32, whatever torch's
    flag for convolutions says. ArgumentError at construction for what the operator has not.
    """

    op = "conv2d"

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Pair,
        stride: int | Pair = 1,
        padding: str | int | Pair = 0,
        dilation: int | Pair = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        along = stride, padding, dilation
        super().__init__(in_channels, out_channels, kernel_size, *along, groups, bias, padding_mode, device, dtype)
        self._check()

    @classmethod
    def obstacle(cls, module: Any) -> str | None:
        if module.groups != 1:
            return f"groups: expected 1, got {module.groups}"
        if module.padding_mode != "zeros":
            return f"padding_mode: expected 'zeros', got {module.padding_mode!r}"
        if module.padding == "same" and any(n % 2 for n in reaches(module)):
            return f"padding: expected the same on both sides, got {shown(module.padding)} for a kernel of even length"
        return unfit(cls.op, weight=module.weight, bias=module.bias)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        images = input.unsqueeze(0) if input.dim() == 3 else input
        y = kx.conv2d(images, self.weight, self.bias, pair(self.stride), zeros(self), pair(self.dilation))
        return y.squeeze(0) if input.dim() == 3 else y


def reaches(module: Any) -> Pair:
    """Rows and columns from the first to the last element of a kernel."""
    rows, columns = (d * (k - 1) for k, d in zip(module.kernel_size, module.dilation, strict=True))
    return rows, columns


def zeros(module: Any) -> Pair:
    """Rows and columns of zeros on each side."""
    if module.padding == "valid":
        return 0, 0
    if module.padding != "same":
        return pair(module.padding)
    rows, columns = reaches(module)
    return rows // 2, columns // 2
