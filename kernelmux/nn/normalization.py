"""RMSNorm and LayerNorm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import kernelmux as kx
from kernelmux.nn.fallback import unsuited
from kernelmux.nn.module import Ours, outside, unfit

AFFINE = "elementwise_affine: expected True (the operator multiplies by a weight), got False"
EPS = torch.finfo(torch.float32).eps  # what torch takes for eps=None in any dtype up to fp32


class RMSNorm(Ours, torch.nn.RMSNorm):
    """torch.nn.RMSNorm on `rms_norm`: x [..., *normalized_shape] -> y of the same shape.

    ArgumentError at construction for elementwise_affine=False, a dtype other than fp32, fp16 and bf16, or eps outside of
    what `rms_norm` takes.
    """

    op = "rms_norm"

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)
        self._check()

    @classmethod
    def obstacle(cls, module: Any) -> str | None:
        if module.weight is None:
            return AFFINE
        return unfit(cls.op, weight=module.weight) or outside(cls.op, "eps", EPS if module.eps is None else module.eps)

    def declined(self, x: torch.Tensor) -> str | None:
        return _declined(self, x, EPS if self.eps is None else self.eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        eps = EPS if self.eps is None else self.eps
        return kx.rms_norm(_rows(x, self), self.weight.flatten(), eps).view(x.shape)


class LayerNorm(Ours, torch.nn.LayerNorm):
    """torch.nn.LayerNorm on `layer_norm`: input [..., *normalized_shape] -> output of the same shape.

    ArgumentError at construction as for `RMSNorm`.
    """

    op = "layer_norm"

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, bias, device, dtype)
        self._check()

    @classmethod
    def obstacle(cls, module: Any) -> str | None:
        if module.weight is None:
            return AFFINE
        return unfit(cls.op, weight=module.weight, bias=module.bias) or outside(cls.op, "eps", module.eps)

    def declined(self, input: torch.Tensor) -> str | None:
        return _declined(self, input, self.eps)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        bias = None if self.bias is None else self.bias.flatten()
        return kx.layer_norm(_rows(input, self), self.weight.flatten(), bias, self.eps).view(input.shape)


def _declined(module: Any, x: torch.Tensor, eps: float) -> str | None:
    weight = module.weight
    if weight is None:
        return "it has no weight"
    if _beyond(module.op, eps):
        return "its eps is one that the operator does not take"
    return unsuited(x, weight)  # torch raises where the bias alone has another dtype


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _beyond(op: str, eps: float) -> bool:
    return outside(op, "eps", eps) is not None


def _rows(x: torch.Tensor, module: RMSNorm | LayerNorm) -> torch.Tensor:
    """x with the normalised axes as one, so that it ends in as many columns as the weight has elements."""
    count = len(module.normalized_shape)
    if tuple(x.shape[-count:]) != tuple(module.normalized_shape):
        raise kx.ArgumentError(
            f"{module.op}: expected an input [..., {', '.join(map(str, module.normalized_shape))}], got {list(x.shape)}"
        )
    return x if count == 1 else x.flatten(-count)
