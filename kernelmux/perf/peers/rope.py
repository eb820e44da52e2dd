"""Rotary embeddings in other libraries."""

import torch

from kernelmux.perf.peers._libraries import compiled


def with_torch(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    c, s = (t if t.dim() == 2 else t[:, None] for t in (cos, sin))
    if interleaved:
        a, b = x[..., ::2].float(), x[..., 1::2].float()
        return torch.stack((a * c - b * s, b * c + a * s), -1).flatten(-2).to(x.dtype)
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * c - b * s, b * c + a * s), -1).to(x.dtype)


VARIANTS = {"torch_compile": compiled(with_torch)}
