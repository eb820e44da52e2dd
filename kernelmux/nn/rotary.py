"""RotaryEmbedding."""

from __future__ import annotations

import torch

import kernelmux as kx


class RotaryEmbedding(torch.nn.Module):
    """Rotary position embedding of queries and keys on `rope`: angle of position p and pair i is p * base^(-2i / dim).

    dim: columns of a head, an even number. interleaved: neighbouring columns are a pair, and not the two halves (Llama in
    transformers has halves). There are no parameters and no buffers: a change of the model's dtype rounds no table.
    """

    def __init__(self, dim: int, base: float = 10000.0, interleaved: bool = False) -> None:
        super().__init__()
        if dim < 2 or dim % 2:
            raise kx.ArgumentError(f"kernelmux.nn.RotaryEmbedding: dim: expected an even number from 2 on, got {dim}")
        if not base > 0:
            raise kx.ArgumentError(f"kernelmux.nn.RotaryEmbedding: base: expected a number above 0, got {base}")
        self.dim, self.base, self.interleaved = dim, base, interleaved

    def angles(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin [..., M, dim / 2] of the angles at positions [..., M], rounded once to the dtype.

        A model computes them once and gives them to `kernelmux.rope` in every layer.
        """
        pairs = torch.arange(0, self.dim, 2, device=positions.device, dtype=torch.float32)
        angles = positions[..., None].float() * self.base ** (-pairs / self.dim)
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """q [B, H, M, dim] and k [B, G, M, dim], turned; positions [M] or [B, M], 0 to M - 1 if left out."""
        if positions is None:
            positions = torch.arange(q.shape[-2], device=q.device)
        cos, sin = self.angles(positions, q.dtype)
        return kx.rope(q, cos, sin, self.interleaved), kx.rope(k, cos, sin, self.interleaved)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, base={self.base}, interleaved={self.interleaved}"
