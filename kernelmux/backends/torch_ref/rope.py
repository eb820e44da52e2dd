"""Rotary position embedding by products of halves."""

import torch

from kernelmux.registry.backend import Implementation
from kernelmux.registry.numerics import Rounding

T = torch.Tensor


def plain(x: T, cos: T, sin: T, interleaved: bool) -> T:
    a, b = _pairs(x, interleaved)
    c, s = _over_heads(cos), _over_heads(sin)
    return _joined(a * c - b * s, b * c + a * s, interleaved)


def exact(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    half = x.shape[-1] // 2
    z, c, s = x.float(), _over_heads(cos.float()), _over_heads(sin.float())
    a, b = (z[..., 0::2], z[..., 1::2]) if interleaved else (z[..., :half], z[..., half:])
    turned = (a * c - b * s, b * c + a * s)
    y = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    return y.to(x.dtype).contiguous()


def _pairs(x: T, interleaved: bool) -> tuple[T, T]:
    half = x.shape[-1] // 2
    return (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])


def _joined(first: T, second: T, interleaved: bool) -> T:
    turned = (first, second)
    return (torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)).contiguous()


def _over_heads(x: torch.Tensor) -> torch.Tensor:
    """[M E] or [B M E] as it meets [B H M E]."""
    return x[:, None] if x.dim() == 3 else x


def _size(x: T, cos: T, sin: T, interleaved: bool) -> T:
    (a, b), c, s = _pairs(x.abs(), interleaved), _over_heads(cos.abs()), _over_heads(sin.abs())
    return _joined(a * c + b * s, b * c + a * s, interleaved)


PRODUCTS = Rounding("the products with cos and sin", _size, lambda x, *rest: torch.full_like(x, 2.0))

VARIANTS = {
    "plain": Implementation(fn=plain, idea="four products of halves", rounds=(PRODUCTS,)),
    "exact": Implementation(fn=exact, idea="four products of halves, in fp32"),
}
