"""Rotary position embedding by products of halves, in fp32."""

import torch

from kernelmux.registry.backend import Implementation


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    half = x.shape[-1] // 2
    z, c, s = x.float(), _over_heads(cos.float()), _over_heads(sin.float())
    a, b = (z[..., 0::2], z[..., 1::2]) if interleaved else (z[..., :half], z[..., half:])
    turned = (a * c - b * s, b * c + a * s)
    y = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    return y.to(x.dtype).contiguous()


def _over_heads(x: torch.Tensor) -> torch.Tensor:
    """[M E] or [B M E] as it meets [B H M E]."""
    return x[:, None] if x.dim() == 3 else x


VARIANTS = {"eager": Implementation(fn=rope, idea="four products of halves, in fp32")}
