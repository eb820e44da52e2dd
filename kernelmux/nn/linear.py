"""Linear, and the gated layer of Llama made of three."""

from __future__ import annotations

from typing import Any

import torch

import kernelmux as kx
from kernelmux.nn.fallback import unsuited
from kernelmux.nn.module import Ours, precision, unfit


class Linear(Ours, torch.nn.Linear):
    """torch.nn.Linear on `linear`: input [..., in_features] -> [..., out_features].

    fp32 is multiplied in fp32, or in tf32 where torch's flag for the
    device allows it; a compiled model keeps what the flag was when it was compiled. ArgumentError at construction for a
    dtype other than fp32, fp16 and bf16.
    """

    op = "linear"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self._check()

    @classmethod
    def obstacle(cls, module: Any) -> str | None:
        return unfit(cls.op, weight=module.weight, bias=module.bias)

    def declined(self, input: torch.Tensor) -> str | None:
        return unsuited(input, self.weight)  # torch raises where the bias alone has another dtype

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return kx.linear(input, self.weight, self.bias, precision=precision(input.is_cuda))


class SwiGLU(Ours, torch.nn.Module):
    """The gated layer of Llama: x [..., hidden_size] -> down_proj(silu(gate_proj(x)) * up_proj(x)), of the same shape.

    Its `state_dict` is that of the MLP in a Llama: gate_proj, up_proj, down_proj. ArgumentError as for `Linear`.
    """

    op = "swiglu"

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        bias: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.gate_proj = Linear(hidden_size, intermediate_size, bias, device, dtype)
        self.up_proj = Linear(hidden_size, intermediate_size, bias, device, dtype)
        self.down_proj = Linear(intermediate_size, hidden_size, bias, device, dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down_proj(kx.swiglu(self.gate_proj(x), self.up_proj(x)))
        return y
