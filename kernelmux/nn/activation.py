"""GELU, Softmax and LogSoftmax."""

from __future__ import annotations

from typing import Any

import torch

import kernelmux as kx
from kernelmux.nn.fallback import unsuited
from kernelmux.nn.module import Ours, outside

DIM = "dim: expected the number of an axis, got None (torch guesses it, and warns)"


class GELU(Ours, torch.nn.GELU):
    """torch.nn.GELU on `gelu`: any shape, approximate "none" or "tanh"; ArgumentError at construction for others."""

    op = "gelu"

    def __init__(self, approximate: str = "none") -> None:
        super().__init__(approximate)
        self._check()

    @classmethod
    def obstacle(cls, module: Any) -> str | None:
        return outside(cls.op, "approximate", module.approximate)

    def declined(self, input: torch.Tensor) -> str | None:
        return unsuited(input)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        approximate: Any = self.approximate
        return kx.gelu(input, approximate)


class _AlongAxis(Ours):
    """Base of the two modules that have `dim` and nothing else; ArgumentError at construction for dim=None."""

    dim: int | None

    def __init__(self, dim: int | None = None) -> None:
        super().__init__(dim)  # type: ignore[call-arg]
        self._check()

    @classmethod
    def obstacle(cls, module: Any) -> str | None:
        return DIM if module.dim is None else None

    def declined(self, input: torch.Tensor) -> str | None:
        if self.dim is None:
            return "its dim is None"
        return unsuited(input) or (None if input.dim() else "its input has no axis")


class Softmax(_AlongAxis, torch.nn.Softmax):
    """torch.nn.Softmax on `softmax`; ArgumentError at construction for dim=None."""

    op = "softmax"

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return kx.softmax(input, int(self.dim or 0))


class LogSoftmax(_AlongAxis, torch.nn.LogSoftmax):
    """torch.nn.LogSoftmax on `log_softmax`; ArgumentError at construction for dim=None."""

    op = "log_softmax"

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return kx.log_softmax(input, int(self.dim or 0))
