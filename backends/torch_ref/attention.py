"""Attention by torch.nn.functional.scaled_dot_product_attention."""

import torch

from kernelmux.registry.backend import Implementation
from kernelmux.registry.tracing import has_memory

LOWEST = torch.finfo(torch.float32).smallest_normal
PAIRS = 65535  # of batch and head in one call: torch's fused kernels put them into grid.y (torch 2.11)
HIGHEST = 2.0**64  # beyond it scores, which reach 2^48 in fp16, times the scale overflow fp32


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """A copy of what is not made of rows at multiples of 16 bytes: torch's fused kernels fault there (torch 2.11, H200)."""
    start = x.data_ptr() if has_memory(x) else x.storage_offset() * x.element_size()
    places = (start, *(s * x.element_size() for s, n in zip(x.stride()[:-1], x.shape[:-1], strict=True) if n > 1))
    return x.clone(memory_format=torch.contiguous_format) if any(p % 16 for p in places) else x


def _mask(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Which key each query sees, aligned to the last one: torch's is_causal aligns to the first."""
    rows, columns = q.shape[2], k.shape[2]
    return torch.ones(rows, columns, dtype=torch.bool, device=q.device).tril(columns - rows)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    if q.numel() == 0:  # the fused kernels return None for an empty batch on a GPU (torch 2.11)
        return torch.empty_like(q, memory_format=torch.contiguous_format)
    if q.is_cuda and q.shape[0] * q.shape[1] > PAIRS and q.shape[0] > 1:
        few = max(1, PAIRS // q.shape[1])
        parts = zip(torch.split(q, few), torch.split(k, few), torch.split(v, few), strict=True)
        return torch.cat([attention(*part, causal, scale) for part in parts])
    if abs(scale) > HIGHEST:
        return _steep(q, k, v, causal, scale)
    if abs(scale) < LOWEST:  # flushed to zero, it would meet the mask's infinities; the scores vanish either way
        q, scale = q * 0.0, 1.0
    elif scale < 0:  # the fused kernels take the largest score before they scale it
        q, scale = -q, -scale
    mask = _mask(q, k) if causal and q.shape[2] != k.shape[2] else None
    grouped = q.shape[1] != k.shape[1]
    q, k, v = _aligned(q), _aligned(k), _aligned(v)
    y = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal and mask is None, scale=scale, enable_gqa=grouped
    )
    return y.contiguous()


def _steep(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    """Scores are scaled as distances to the largest one: these may overflow, to a weight of zero."""
    share = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(share, dim=1), v.repeat_interleave(share, dim=1)
    s = (q if scale > 0 else -q).float() @ k.float().mT
    if causal:
        s = s.masked_fill(~_mask(q, k), -torch.inf)
    p = torch.softmax((s - s.amax(-1, keepdim=True).detach()) * abs(scale), -1)
    return (p @ v.float()).to(q.dtype).contiguous()


# torch's CPU kernel misreads rows that overlap (300 times the bound with torch 2.13), hence the layouts.
VARIANTS = {
    "eager": Implementation(
        fn=attention,
        idea="scaled_dot_product_attention",
        layout=dict.fromkeys("qkv", "matrix"),
        arithmetic="mma",
    )
}
