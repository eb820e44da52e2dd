"""Rotary embeddings in other libraries."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernelmux.perf.peers._libraries import compiled, function, library
from kernelmux.registry.conditions import AtMost
from kernelmux.registry.spec import Call

_fla = function("fla.modules.rotary.ops.rotary_embedding_fwdbwd")


@dataclass(frozen=True)
class SharedAngles:
    """All of the batch have the same angles."""

    text: str = "cos and sin with two axes"

    def check(self, call: Call) -> str | None:
        axes = [call.arguments[name].dim() for name in ("cos", "sin")]
        return None if axes == [2, 2] else f"cos and sin with {axes[0]} and {axes[1]} axes, needs {self.text}"


def with_torch(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    c, s = (t if t.dim() == 2 else t[:, None] for t in (cos, sin))
    if interleaved:
        a, b = x[..., ::2].float(), x[..., 1::2].float()
        return torch.stack((a * c - b * s, b * c + a * s), -1).flatten(-2).to(x.dtype)
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * c - b * s, b * c + a * s), -1).to(x.dtype)


def with_fla(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """Its [B M H D] without gaps is here [B*H M 1 D], which is no copy."""
    each = x.reshape(-1, x.shape[2], 1, x.shape[3]).contiguous()
    y: torch.Tensor = _fla(each, cos.contiguous(), sin.contiguous(), interleaved=interleaved)
    return y.view(x.shape)


VARIANTS = {
    "torch_compile": compiled(with_torch),
    "fla": library("fla", with_fla, SharedAngles(), AtMost("D", 256)),
}
